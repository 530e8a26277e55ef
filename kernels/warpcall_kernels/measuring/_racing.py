"""Races the implementations of a case: those that may be the fastest are timed, the others leave.

An implementation is checked and prepared when it enters. At most AT_ONCE race at the same time, so
that no more of them have a process and memory of the device. The copy takes part in each round.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from warpcall_kernels.execution.implementations import LIMIT, Implementation
from warpcall_kernels.execution.process import Deadlines
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.measuring._blocks import BLOCK_US, Dropped, Lease
from warpcall_kernels.measuring._candidates import Candidate
from warpcall_kernels.measuring._measure import (
    DEADLINES,
    FEWEST_ROUNDS,
    REPORT_EVERY_S,
    TIGHT_AFTER_S,
    Measurement,
    OnPrinted,
    Progress,
    measured,
)
from warpcall_kernels.measuring._observe import observer
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._preparation import check_results, prepare
from warpcall_kernels.measuring._race import AT_ONCE, Interval, Race, full_rounds
from warpcall_kernels.measuring._race_history import History
from warpcall_kernels.measuring._result import CaseResult, RaceInterval, RaceResult, RaceRow
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.op.errors import InvalidInput

ROUNDS_AT_ONCE = 8  # neighbours in a block are alike, so that many of them tell little more
MOST_SAMPLES = 60_000  # of all implementations, with gaps; a job keeps and sends each
MOST_ROUNDS = 5000
TRACEBACKS = 64 << 10  # characters of all together, of which each has the same share
NO_TURN = "the time of the race was up before its turn"


def race(
    case: JobCase,
    implementations: Sequence[str],
    device: torch.device | str,
    precision: Precision,
    *,
    seed: int = 0,
    lease: Lease = contextlib.nullcontext,
    progress: Progress = lambda event: None,
    printed: OnPrinted = lambda name, text: None,
    deadlines: Deadlines = DEADLINES,
) -> CaseResult:
    """Find the fastest implementation of a case, with as little device time as that needs.

    Arguments as for `measure`. The race takes at most the precision's time for AT_ONCE
    implementations, without the time in which implementations are checked and prepared. `progress`
    is also called with the phase "left" when one leaves.

    Returns:
        The result, with `race`. An error of an implementation is part of it.

    Raises:
        InvalidInput: there is no such implementation or device, or the precision times nothing.
    """
    if not precision.timed:
        raise InvalidInput("precision", f"a race times, the precision {precision.name} does not")
    return measured(
        RaceMeasurement,
        *(case, implementations, device, precision, seed),
        *(lease, progress, printed, deadlines),
    )


class RaceMeasurement(Measurement):
    """The race of one case. Each candidate has a column of the rounds, also if it fails."""

    most_at_once = AT_ONCE

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._later: dict[int, tuple[Implementation, Deadlines]] = {}  # by column
        self._rounds = Rounds(0, self._precision)
        self._race = Race(self._rounds, ())
        self._limit = 0  # column of the copy
        self._first = ""
        self._history = History(())
        self._left_s: dict[int, float] = {}  # by column
        self._begin_s = 0.0  # of the rounds, by `Blocks.now`
        self._spent_s = 0.0  # on checking and preparing, which the time limit does not include

    def add(self, name: str, found: Implementation | None, deadlines: Deadlines) -> None:
        """Add an implementation. One with a process of its own is started when it enters."""
        if found is None or found.process is None or found.process[1]:
            super().add(name, found, deadlines)
            return
        self._later[len(self.candidates)] = found, deadlines
        self.candidates.append(Candidate(name, process=found.process[0], tags=found.tags))

    def run(self, asked: Sequence[str]) -> CaseResult:
        """Race, and build the result."""
        columns = self._blocks.columns = self.candidates
        self._first = asked[0]
        self._limit = [c.name for c in columns].index(LIMIT)
        self._rounds = Rounds(len(columns), self._precision, self._seed, scheduled=[self._limit])
        self._race = Race(self._rounds, [n for n in range(len(columns)) if n != self._limit])
        self._history = History([c.name for c in columns])
        self._report("preparing")
        with self._failing_all():
            if self._prepared(columns[self._limit]):
                self._take_race()
                self._end_race()
        return self._with_race(self._result(asked, self._rounds))

    def close(self) -> None:
        """Let other processes wait, or end them if there are too many of them."""
        super().close()
        for number in self._later:
            self._free_process(number)

    def _take_race(self) -> None:
        """Take rounds until the race is decided, or its time is over."""
        entrants = len(self._race.waiting)
        limit_s = self._precision.seconds * min(AT_ONCE, entrants)
        most_rounds = min(MOST_ROUNDS, self._precision.max_rounds * -(-entrants // AT_ONCE))
        begin = tight_at = self._begin_s = self._blocks.now()
        self._blocks.check_s = 0.0
        while True:
            self._let_enter()
            # One that was never beside another one is timed, too: it wins by its times.
            is_timed = self._rounds.counted >= FEWEST_ROUNDS or not self._race.racing
            if self._race.is_decided() and is_timed:
                return
            if self._raced_s() > limit_s:
                return
            if len(self._rounds) >= most_rounds or self._places() > MOST_SAMPLES:
                return
            self._report_race()
            try:
                if self._device.type == "cuda" and self._blocks.now() > tight_at:
                    tight_at += max(TIGHT_AFTER_S, self._blocks.now() - begin)
                    for c in self._running():
                        if c.remote is not None:
                            self._blocks.take_tight(c)
                for _ in self._blocks.take(self._rounds, self._rounds.plan(self._count()), begin):
                    self._read(len(self._rounds) - 1)
                if not self._race.due():
                    looked_s = self._raced_s()
                    self._history.add(len(self._rounds), looked_s, self._race.ratios())
                    self._look(looked_s)
            except Dropped:
                self._drop()

    def _raced_s(self) -> float:
        """Seconds since the race began, without those in which candidates entered."""
        return self._blocks.now() - self._begin_s - self._spent_s

    def _count(self) -> int:
        """How many rounds to take before the next look."""
        round_us = sum(self._clock.wall_us(c.ready) for c in self._running())
        return min(max(1, int(BLOCK_US / round_us)), ROUNDS_AT_ONCE, max(1, self._race.due()))

    def _places(self) -> int:
        """The number of samples that the result has, with gaps before the first one of each."""
        return sum(self._last_round(number) + 1 for number in range(len(self.candidates)))

    def _last_round(self, number: int) -> int:
        """The last round with a sample of a column; -1 if there is none."""
        found = np.flatnonzero(np.isfinite(self._rounds.all(number)))
        return int(found[-1]) if len(found) else -1

    def _let_enter(self) -> None:
        """Let those enter for which there is room, and take a short time in which all get warm."""
        begin, entered = self._blocks.now(), False
        while self._race.may_enter():
            number, *following = self._race.waiting
            for c in map(self.candidates.__getitem__, following[:1]):
                if c.process is not None and len(self._race.racing) + 1 < AT_ONCE:
                    c.process.start_ahead()
            c = self.candidates[number]
            c.has_left = False
            if number in self._later:
                c.is_shortened = False
                self._build(c, *self._later[number])
            if self._prepared(c):
                self._race.enter()
                entered = True
            else:
                self._race.fail(number)
                self._end_process(number)
        while entered and self._race.racing:
            self._report("warmup")
            try:
                self._warm_window([*map(self.candidates.index, self._running())], begin)
            except Dropped:
                self._drop()
            else:
                break
        self._spent_s += self._blocks.now() - begin

    def _prepared(self, c: Candidate) -> bool:
        """Check the results of a candidate and prepare its calls; returns whether it can be timed."""
        beside = self._running() if self._race.racing else []
        check_results(self._case, [c], self._blocks, self._device, self._report)
        self._nbytes = prepare(
            *(self._case, [c], self._blocks, self._clock, self._pool, self._report), beside
        )
        self._blocks.observer = observer(self._device)  # all processes that use the device now
        return c.is_timed

    def _look(self, raced_s: float) -> None:
        """Let those leave that may. The leader sends nobody away by times that may be wrong.

        Args:
            raced_s: seconds of the race until now.
        """
        if not (gone := self._race.leaving()):
            self._make_room()
            return
        leader = next(iter(gone.values())).leader
        if not self._is_sound(leader):
            return
        for number, left in gone.items():
            self._confirm_one(number, self.candidates[number], self._rounds)
            self._report(
                "left",
                implementation=self.candidates[number].name,
                rounds=left.round,
                leader=self.candidates[leader].name,
                ratio=left.interval.ratio,
            )
        self._race.let_leave(gone)
        for number in gone:
            self._left_s[number] = raced_s
            self.candidates[number].has_left = True
            self._free_process(number)

    def _make_room(self) -> None:
        """Let one make room whose turn is over."""
        if (number := self._race.step_aside()) is not None:
            c = self.candidates[number]
            c.has_left = True
            try:
                self._confirm_one(number, c, self._rounds)
            except Dropped:
                self._race.fail(number)
            self._free_process(number)

    def _is_sound(self, number: int) -> bool:
        """Whether the times of a candidate are a basis for verdicts. One whose times cannot be true,
        or not be compared with others, does not race any more."""
        c = self.candidates[number]
        self._confirm_one(number, c, self._rounds)
        if self._concludes(number):
            return True
        if c.is_confirmed:  # otherwise our clock may confirm it later
            self._take_out(number)
        return False

    def _concludes(self, number: int) -> bool:
        return self._builder(self._first, self._rounds).concludes(number)

    def _drop(self) -> None:
        """Take those out that have failed in the last block."""
        for number in [*self._race.racing]:
            if self.candidates[number].status != "ok":
                self._take_out(number)
        limit = self.candidates[self._limit]
        if limit.status != "ok" and not limit.has_left:
            limit.has_left = True
            self._rounds.leave(self._limit)

    def _take_out(self, number: int) -> None:
        self._race.fail(number)
        self.candidates[number].has_left = True
        self._end_process(number)

    def _free_process(self, number: int) -> None:
        """End the process of one that has left, if not all can have one at the same time."""
        if len(self._later) > AT_ONCE:
            self._end_process(number)

    def _end_process(self, number: int) -> None:
        remote = self.candidates[number].remote
        if number in self._later and remote is not None:
            remote.retire()

    def _end_race(self) -> None:
        """Hold the times of those that raced until the end against our clock."""
        if self._race.racing:
            self._history.end(len(self._rounds), self._raced_s(), self._race.ratios())
        for number in self._race.waiting:
            c = self.candidates[number]
            if self._last_round(number) < 0 and c.status == "ok":
                c.status, c.error = "unchecked", NO_TURN
        for number in [*self._race.racing]:
            try:
                self._confirm_one(number, self.candidates[number], self._rounds)
            except Dropped:
                self._take_out(number)
        if self._precision.extras:
            self._take_extras()
        while self._race.racing and not self._concludes(leader := self._race.leader()):
            self._race.fail(leader)

    def _running(self) -> list[Candidate]:
        """The copy, and those that race."""
        numbers = [self._limit, *self._race.racing]
        present = [self.candidates[number] for number in numbers]
        return [c for c in present if c.is_timed and not c.has_left]

    def _columns(self) -> list[Candidate]:
        return self.candidates

    def _report_race(self) -> None:
        now = time.monotonic()
        if now < self._reported_at + REPORT_EVERY_S:
            return
        self._reported_at = now
        samples = {self.candidates[n].name: self._rounds.counting(n) for n in self._race.racing}
        self._report(
            "rounds",
            rounds=self._rounds.counted,
            leader=self.candidates[self._race.leader()].name,
            racing=len(self._race.racing),
            waiting=len(self._race.waiting),
            medians_us={
                name: float(np.nanmedian(one))
                for name, one in samples.items()
                if np.isfinite(one).any()
            },
        )

    def _with_race(self, result: CaseResult) -> CaseResult:
        """The result with what came of the race."""
        standings = self._race.standings() if self._race.racing else {}
        ranked = [n for n in standings if n == next(iter(standings)) or self._concludes(n)]
        ranked.sort(key=lambda n: standings[n].ratio)
        fastest = [n for n in ranked if standings[n].low <= 1]
        ranks = {n: 1 if n in fastest else place for place, n in enumerate(ranked, 1)}
        numbers = {c.name: n for n, c in enumerate(self.candidates)}
        outcome = "none"
        if fastest:
            decided = self._race.is_decided()
            outcome = ("winner" if len(fastest) == 1 else "same") if decided else "undecided"
        rows = []
        traced = sum(row.traceback is not None for row in result.implementations)
        most = TRACEBACKS // max(1, traced)
        for row in result.implementations:
            number = numbers[row.name]
            samples = row.samples_us[: self._last_round(number) + 1]
            rank = ranks.get(number)
            found = None
            if number != self._limit:
                found = self._race_row(number, rank, standings.get(number))
            traceback = row.traceback[-most:] if row.traceback else None
            rows.append(replace(row, samples_us=samples, race=found, traceback=traceback))
        return replace(
            result,
            implementations=tuple(rows),
            converged=outcome in ("winner", "same"),
            race=RaceResult(
                outcome,
                self.candidates[next(iter(standings))].name if standings else None,
                tuple(self.candidates[n].name for n in fastest),
                *self._device_s(standings),
                history=self._history.result(),
            ),
        )

    def _race_row(self, number: int, rank: int | None, found: Interval | None) -> RaceRow:
        to_leader = None if rank is None or found is None else _plain(found)
        left = self._race.left.get(number)
        if left is None:
            return RaceRow(rank, to_leader)
        leader = self.candidates[left.leader].name
        return RaceRow(
            *(rank, to_leader, left.round, left.why, leader, _plain(left.interval)),
            left_s=round(self._left_s.get(number, 0.0), 3),
        )

    def _device_s(self, standings: Mapping[int, Interval]) -> tuple[float, float | None]:
        """Seconds of the timed calls of the race, and about those of measuring all fully."""
        spent_us, each_us = 0.0, 0.0
        for number, c in enumerate(self.candidates):
            samples = self._rounds.all(number)
            if number != self._limit and np.isfinite(samples).any():
                spent_us += float(np.nansum(samples)) * c.ready.repeats
                each_us += float(np.nanmedian(samples)) * c.ready.repeats
        others = [*standings][1:]
        if not others:
            return spent_us / 1e6, None
        longest = max(others, key=self._race.rounds_of)
        wanted = self._precision
        rounds = full_rounds(
            standings[longest],
            self._race.rounds_of(longest),
            wanted.half_width,
            wanted.min_rounds,
        )
        return spent_us / 1e6, min(rounds, wanted.max_rounds) * each_us / 1e6


def _plain(interval: Interval) -> RaceInterval:
    low = interval.low if interval.low > 0 else None
    high = interval.high if math.isfinite(interval.high) else None
    return RaceInterval(interval.ratio, low, high)
