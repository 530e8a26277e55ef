"""Races for tests of pages: the sequential test of the library decides them, on made-up times."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tests.pages import lab
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.tables import Job
from warpcall_kernels.measuring import Precision
from warpcall_kernels.measuring._race import Interval, Race
from warpcall_kernels.measuring._race_history import History
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_service.store.database import Store

NOISE = 0.006  # of the logarithm of a sample
ROUNDS_AT_ONCE = 4
ROUND_S = 0.02
BEST_US = 18.0
MOST_ROUNDS = 2000


class Raced:
    """A race of some implementations.

    Args:
        names: of them; the times of most are up to three times that of the best.
        seed, noise: of the times, and of what varies between races of the same ones.
        failed: those whose results are wrong.
        most_rounds: after which it ends, decided or not.

    Attributes:
        events: progress events, as a job reports them.
        changes: members of the result of a case that replace those of a measurement.
    """

    def __init__(
        self,
        names: Sequence[str],
        seed: int,
        *,
        noise: int = 0,
        failed: Collection[str] = (),
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        self._names = names
        self._failed = failed
        random = np.random.default_rng(seed)
        logs = random.uniform(0.02, math.log(3), len(names))
        logs[random.permutation(len(names))[:2]] = 0.0, 0.012
        self._us = BEST_US * np.exp(logs)
        self._rounds = Rounds(len(names), Precision("race", 0), seed, scheduled=())
        entrants = [n for n, name in enumerate(names) if name not in failed]
        self._race = Race(self._rounds, entrants)
        self._history = History(names)
        self._left_s: dict[int, float] = {}
        self.events: list[dict[str, Any]] = []
        self._run(np.random.default_rng((seed, noise)), most_rounds)

    @property
    def changes(self) -> dict[str, Any]:
        standings = self._race.standings()
        ranked = sorted(standings, key=lambda number: standings[number].ratio)
        fastest = [number for number in ranked if standings[number].low <= 1]
        rows = []
        for number, name in enumerate(self._names):
            samples = self._rounds.all(number)
            known = samples[np.isfinite(samples)]
            right = name not in self._failed
            row = lab.measured(
                *(name, known if right else None, None, 1 << 24, BEST_US),
                "out differs from the reference in 4 of 1024 elements",
            )
            row["status"] = "ok" if right else "wrong_result"
            row["samples_us"] = [float(one) if np.isfinite(one) else None for one in samples]
            row["race"] = self._row(number, standings.get(number), ranked, fastest)
            rows.append(row)
        decided = self._race.is_decided()
        outcome = ("winner" if len(fastest) == 1 else "same") if decided else "undecided"
        device_s = (
            float(np.nansum([self._rounds.all(n) for n in range(len(self._names))])) * 12 / 1e6
        )
        return {
            "implementations": rows,
            "rounds": len(self._rounds),
            "race": {
                "outcome": outcome,
                "leader": self._names[next(iter(standings))],
                "fastest": [self._names[number] for number in fastest],
                "device_s": device_s,
                "full_device_s": device_s * 14,
                "history": {
                    "rounds": [*self._history.result().rounds],
                    "seconds": [*self._history.result().seconds],
                    "ratios": {n: [*r] for n, r in self._history.result().ratios.items()},
                },
            },
        }

    def _run(self, random: np.random.Generator, most_rounds: int) -> None:
        race, rounds = self._race, self._rounds
        while len(rounds) < most_rounds:
            while race.may_enter():
                race.enter()
            if race.is_decided():
                break
            planned = rounds.plan(min(ROUNDS_AT_ONCE, max(2, race.due())))
            planned = [one for one in planned if one.candidate != rounds.twin]
            noise = NOISE * random.standard_normal(len(planned))
            us = [
                float(self._us[p.candidate] * np.exp(n))
                for p, n in zip(planned, noise, strict=True)
            ]
            rounds.take(planned, us, None)
            self.events.append(self._stood())
            if not race.due():
                self._look()
        self._history.end(len(rounds), len(rounds) * ROUND_S, race.ratios())

    def _look(self) -> None:
        race, now = self._race, len(self._rounds)
        self._history.add(now, now * ROUND_S, race.ratios())
        gone = race.leaving()
        for number, left in gone.items():
            self._left_s[number] = now * ROUND_S
            self.events.append(
                {
                    "phase": "left",
                    "implementation": self._names[number],
                    "rounds": left.round,
                    "leader": self._names[left.leader],
                    "ratio": left.interval.ratio,
                }
            )
        race.let_leave(gone)
        if not gone:
            race.step_aside()

    def _stood(self) -> dict[str, Any]:
        race = self._race
        medians = {self._names[n]: float(np.nanmedian(self._rounds.all(n))) for n in race.racing}
        return {
            "phase": "rounds",
            "rounds": len(self._rounds),
            "leader": self._names[race.leader()],
            "racing": len(race.racing),
            "waiting": len(race.waiting),
            "medians_us": medians,
        }

    def _row(
        self, number: int, found: Interval | None, ranked: Sequence[int], fastest: Collection[int]
    ) -> dict[str, Any]:
        left = self._race.left.get(number)
        rank = None
        if number in ranked:
            rank = 1 if number in fastest else ranked.index(number) + 1
        row: dict[str, Any] = {"rank": rank, "to_leader": None if found is None else _plain(found)}
        row |= dict.fromkeys(("left_round", "left_why", "left_leader", "left_ratio", "left_s"))
        if left is not None:
            row |= {"left_round": left.round, "left_why": left.why}
            row |= {"left_leader": self._names[left.leader], "left_ratio": _plain(left.interval)}
            row["left_s"] = self._left_s[number]
        return row


def job(
    store: Store,
    names: Sequence[str],
    *,
    cases: int = 1,
    measured: int | None = None,
    failed: Collection[str] = (),
    seed: int = 0,
    most_rounds: int = MOST_ROUNDS,
) -> str:
    """A job in which these race, and its id.

    Args:
        measured: cases that have ended; None means all. If not all have, the next one races.
    """
    for name in names:
        user, slash, own = name.partition("/")
        if slash:
            lab.upload(
                store, user, "permute", own, f"def permute(x, dims):\n    return x  # {own}\n"
            )
    asked = lab.permute_cases()[:cases]
    lab.submit(store, "dan", "permute", asked, names, race=True)
    ended = cases if measured is None else measured
    changes: Mapping[int, Mapping[str, Any]] = {
        position: Raced(names, seed, noise=position, failed=failed, most_rounds=most_rounds).changes
        for position in range(ended)
    }
    number = lab.measure(store, {}, cases=ended, changes=changes, state="succeeded")
    if ended < cases:
        running = Raced(names, seed, noise=ended, failed=failed)
        half = running.events[: max(4, int(len(running.events) * 0.6))]
        with store.write() as session:
            row = session.query(Job).filter_by(id=number).one()
            for event in half:
                append_event(session, row, "progress", {"position": ended, **event})
    return number


def _plain(interval: Interval) -> dict[str, Any]:
    low = interval.low if interval.low > 0 else None
    high = interval.high if math.isfinite(interval.high) else None
    return {"ratio": interval.ratio, "low": low, "high": high}
