"""Races: which of several implementations is the fastest? Types, and what follows from all cases.

A race is a job in which whoever is surely slower than the fastest is timed no more. The server
decides each case; this module says what the cases decide together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from warpcall._extras.tables import Table
from warpcall.jobs import Payload
from warpcall.jobs.results import CaseRace, Measurement, RaceInterval, Results, why_no_verdict

Outcome = Literal["winner", "same", "undecided", "none"]
"""How a race ended: one is surely the fastest, several are the same within MARGIN and all others
slower, the time was up before, or no implementation has times that are a basis for a verdict."""

MARGIN = 0.01
"""Log ratios within it count as no difference."""
FEWEST, MOST = 2, 64
"""Implementations of a race."""


@dataclass(frozen=True, kw_only=True)
class RaceEntry(Payload):
    """What came of one implementation in a race, over all of its cases."""

    rank: int | None
    """1 for the fastest, and for all that may be as fast. Null if it has no rank in some case."""
    implementation: str
    """Its name in the job."""
    ratio: float | None
    """Geometric mean of its times over those of the fastest; null without a rank."""
    ratio_low: float | None
    """Lower end of the interval of `ratio`; null if it is not known."""
    ratio_high: float | None
    """Upper end of the interval of `ratio`; null if it is not known."""
    median_us: float | None
    """Geometric mean of its median times, in microseconds; null if it has none in some case."""
    best_in: int
    """Cases in which it is the fastest, or may be as fast as the fastest."""
    status: str
    """"ok", or its worst status in a case, such as "wrong_result"."""
    error: str | None
    """Why it has no rank: the error, or the tag because of which its times are no basis for a
    verdict; null if it has one."""
    left: str
    """When it left the race of the first case in which it did, and why; empty if it did not."""
    configuration: dict[str, Any] = field(default_factory=dict)
    """The constants with which it was made of a file; empty if it was not."""


@dataclass(frozen=True, kw_only=True)
class CaseOutcome(Payload):
    """How the race of one case ended."""

    case: str
    """Key of the case."""
    outcome: Outcome
    """How it ended."""
    fastest: list[str]
    """The leader, and all that may be as fast."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Race(Table, Payload):
    """A race that has ended."""

    SHOWN: ClassVar = (
        *("rank", "implementation", "ratio", "ratio_low", "ratio_high"),
        *("median_us", "best_in", "status", "left"),
    )

    job: str
    """Id of the job."""
    op: str
    """Name of the op."""
    outcome: Outcome
    """How it ended: of one case as the case did, of several by the geometric mean of the ratios."""
    winner: str | None
    """Name of the fastest; null if there is none. If the outcome is not "winner", others may be as
    fast."""
    entries: list[RaceEntry]
    """The ranking, the fastest first; then those without a rank."""
    cases: list[CaseOutcome]
    """How each case ended."""
    never_best: list[str]
    """Those with a rank that are the fastest in no case, and surely so."""
    device_s: float
    """Seconds of timed calls."""
    full_device_s: float | None
    """About what measuring all fully would have taken at the same certainty, in seconds; null if it
    is not known."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a source did not race, by its file or configuration: the server refused it."""

    @property
    def configuration(self) -> dict[str, Any]:
        """The constants of the winner; empty if it was not made of a file with constants."""
        return next((e.configuration for e in self.entries if e.implementation == self.winner), {})

    @property
    def sentence(self) -> str:
        """What came of it, in one sentence."""
        fastest = [entry.implementation for entry in self.entries if entry.rank == 1]
        if self.winner is None:
            return "no implementation has times that are a basis for a verdict"
        if self.outcome == "winner":
            return f"{self.winner} is the fastest"
        others = ", ".join(name for name in fastest if name != self.winner)
        if self.outcome == "same":
            return f"{self.winner} is the fastest, and the same within 1 %: {others}"
        return f"undecided: {self.winner} leads, and as fast may be: {others}"

    def to_rows(self) -> list[dict[str, Any]]:
        """`entries`, each as a dict."""
        return [entry.to_dict() for entry in self.entries]


def judge(
    results: Results,
    op: str,
    names: Sequence[str],
    *,
    configurations: Mapping[str, Mapping[str, Any]] | None = None,
    refused: Mapping[str, str] | None = None,
) -> Race:
    """What a race decided.

    Args:
        results: of its job.
        names: of the implementations of the job.
        configurations: the constants of each that was made of a file, by its name.
        refused: as `Race.refused`.
    """
    races = [(case.case, case.race) for case in results.cases if case.race is not None]
    rows = {
        name: [row for row in results.measurements if row.implementation == name] for name in names
    }
    means = {name: found for name in names if (found := _mean(rows[name], len(races)))}
    ranked = sorted(means, key=lambda name: means[name][0])
    fastest = [name for name in ranked if _may_be_as_fast(means[name], means[ranked[0]])]
    outcome: Outcome = "none"
    if ranked:
        alone = len(fastest) == 1
        same = all(_is_same(means[name], means[ranked[0]]) for name in fastest[1:])
        outcome = "winner" if alone else "same" if same else "undecided"
    if len(races) == 1:
        outcome = races[0][1].outcome
    places = {name: 1 if name in fastest else n for n, name in enumerate(ranked, 1)}
    entries = [
        _entry(name, rows[name], races, places.get(name), means.get(name), configurations or {})
        for name in [*ranked, *(name for name in names if name not in means)]
    ]
    full = [race.full_device_s for _, race in races]
    return Race(
        job=results.id,
        op=op,
        outcome=outcome,
        winner=ranked[0] if ranked else None,
        entries=entries,
        cases=[
            CaseOutcome(case=case, outcome=race.outcome, fastest=race.fastest)
            for case, race in races
        ],
        never_best=[one.implementation for one in entries if one.rank and not one.best_in],
        device_s=sum(race.device_s for _, race in races),
        full_device_s=sum(one or 0.0 for one in full) if full and None not in full else None,
        refused=dict(refused or {}),
    )


Logs = tuple[float, float, float]
"""The log of a ratio, and the ends of its interval."""


def _mean(rows: Sequence[Measurement], cases: int) -> Logs | None:
    """The mean log ratio to the fastest of each case; None without a rank in one of them.

    All intervals of a race hold at the same time, so the means of their ends are an interval of the
    mean.
    """
    found = [
        row.race.to_leader for row in rows if row.race and row.race.rank and row.race.to_leader
    ]
    if not cases or len(found) < cases:
        return None
    logs = [_logs(one) for one in found]
    middle, low, high = (sum(values) / cases for values in zip(*logs, strict=True))
    return middle, low, high


def _logs(interval: RaceInterval) -> Logs:
    low = math.log(interval.low) if interval.low else -math.inf
    high = math.log(interval.high) if interval.high else math.inf
    return math.log(interval.ratio), low, high


def _may_be_as_fast(one: Logs, leader: Logs) -> bool:
    return one is leader or one[1] <= leader[2]


def _is_same(one: Logs, leader: Logs) -> bool:
    return one[2] - leader[1] <= MARGIN and leader[2] - one[1] <= MARGIN


def _why_no_rank(row: Measurement) -> str | None:
    return row.error if row.status != "ok" else why_no_verdict(row.status, row.tags) or None


def _entry(
    name: str,
    rows: Sequence[Measurement],
    races: Sequence[tuple[str, CaseRace]],
    rank: int | None,
    mean: Logs | None,
    configurations: Mapping[str, Mapping[str, Any]],
) -> RaceEntry:
    failed = next((row for row in rows if row.status != "ok"), None)
    medians = [row.median_us for row in rows if row.median_us]
    known = bool(medians) and len(medians) == len(races)
    left = next((row.race for row in rows if row.race and row.race.left_round is not None), None)
    text = ""
    if left is not None and left.left_ratio is not None:
        how = "slower than" if left.left_why == "slower" else "the same as"
        text = (
            f"after {left.left_round} rounds, {left.left_ratio.ratio:.3g} times {left.left_leader}: "
            f"{how} it"
        )
    return RaceEntry(
        rank=rank,
        implementation=name,
        ratio=None if mean is None else math.exp(mean[0]),
        ratio_low=None if mean is None or not math.isfinite(mean[1]) else math.exp(mean[1]),
        ratio_high=None if mean is None or not math.isfinite(mean[2]) else math.exp(mean[2]),
        median_us=math.exp(sum(map(math.log, medians)) / len(medians)) if known else None,
        best_in=sum(name in race.fastest for _, race in races),
        status="ok" if failed is None else failed.status,
        error=next(filter(None, map(_why_no_rank, rows)), None),
        left=text,
        configuration=dict(configurations.get(name, {})),
    )
