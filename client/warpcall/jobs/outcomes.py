"""What a job says of the implementation that it is about, in words: for lists, pages and commands.

A job with an upload is about that upload, and another job about its first implementation. Every
sentence is from the side of this implementation, and is made from the counts that it states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from warpcall.jobs import COMPLETED, JobInfo, JobOutcome
from warpcall.jobs.results import NOT_ON_GPU, Measurement, can_conclude
from warpcall.jobs.scores import NOTHING, Ratio, Sums, add_ratio, add_share_of_limit, score_of

LIMIT = "copy"  # what nothing is faster than
OPPOSITE = {"faster": "slower", "slower": "faster"}
DECIDED = ("faster", "slower", "same")
UNDECIDED = "undecided"
NO_INTERVAL = "no interval"  # too few samples are stored for one
# What is counted where there is no verdict, besides the status of a case without a valid time.
RIGHT = "right"  # only checked
NOT_TIMED = "not timed"  # right, and no GPU ran its kernel or that of the other one
NO_VERDICT = "no verdict"  # its time, or that of the other one, is no basis for a verdict
NO_OTHER = "no other"  # the other implementation has no valid time
TIMED = "timed"  # and compared with nothing but the limit
STATUS_WORDS = {
    "error": "an error",
    "wrong_result": "a wrong result",
    "compile_error": "a compile error",
    "oom": "out of memory",
    "cuda_error": "a CUDA error",
    "invalid": "an invalid time",
    "timeout": "a timeout",
    "crashed": "a crash",
    "unchecked": "not checked",
}

Level = Literal["good", "partial", "bad", "none"]
"""How a list colours an outcome: good if every case has a time or is right, partial if one has not,
bad if a result is wrong, none if nothing can be concluded."""


class Chip(NamedTuple):
    """What a list shows of the outcome of a job."""

    text: str
    level: Level


class Tally(Sums):
    """How often a job found what of an implementation against another one, case by case, and what its
    score is computed from. Older servers have stored only the first two of `Sums`.

    Attributes:
        counts: cases by what they count as, see `counted`.
    """

    implementation: str
    against: str
    counts: dict[str, int]


def pairs_of(implementations: Sequence[str]) -> list[tuple[str, str]]:
    """What a job compares: the implementation that it is about, with each of the others that were
    timed beside it; "" if there is no other one. Uploads are compared with the first implementation,
    to which ratios are, also if that is an upload."""
    first, *others = implementations
    if uploads := [name for name in others if "/" in name]:
        return [(name, first) for name in uploads]
    if first == LIMIT and others:
        return [(others[0], first)]
    rivals = [name for name in others if name != LIMIT]
    return [(first, name) for name in rivals or others or [""]]


def counted(
    rows: Mapping[str, Measurement], first: str, name: str, against: str
) -> tuple[str, Ratio | None]:
    """What a case counts as for `name`, and its time over that of `against`, if this is known.

    Args:
        rows: of the case, by implementation.
        first: the implementation that ratios and verdicts are to.
    """
    own, other = rows[name], rows.get(against)
    if own.status != "ok":
        return own.status, None
    if own.median_us is None:
        return RIGHT, None
    if NOT_ON_GPU.intersection(own.tags):
        return NOT_TIMED, None
    if not can_conclude(own.status, own.tags):
        return NO_VERDICT, None
    if other is None:
        return TIMED, None
    if other.status != "ok" or NOT_ON_GPU.intersection(other.tags):
        return NO_OTHER, None
    found, inverted = (own, False) if against == first else (other, True)
    if not can_conclude(other.status, other.tags) or not found.ratio or not found.verdict:
        return NO_VERDICT, None
    ratio = Ratio(found.ratio, found.ratio_low, found.ratio_high)
    ratio = ratio.inverted() if inverted else ratio
    if against == LIMIT:
        return TIMED, ratio
    verdict: str = found.verdict
    if verdict not in DECIDED:
        has_interval = None not in (found.ratio_low, found.ratio_high)
        verdict = UNDECIDED if has_interval else NO_INTERVAL
    return OPPOSITE.get(verdict, verdict) if inverted else verdict, ratio


def outcomes_of(implementations: Sequence[str], rows: Iterable[Measurement]) -> list[JobOutcome]:
    """How the implementation that a job is about did against each other one.

    Args:
        rows: of the job, case by case.
    """
    tallies = no_cases(implementations)
    for _, of_case in groupby(rows, lambda row: row.position):
        add_case(tallies, implementations[0], [*of_case])
    return [found for one in tallies if (found := outcome_of(one)).counts]


def no_cases(implementations: Sequence[str]) -> list[Tally]:
    """Tallies of what a job compares, before its first case."""
    return [
        {**NOTHING, "implementation": name, "against": against, "counts": {}}
        for name, against in pairs_of(implementations)
    ]


def add_case(tallies: Iterable[Tally], first: str, rows: Iterable[Measurement]) -> None:
    """Count a case in each tally whose implementation has a row.

    Args:
        first: as for `counted`.
        rows: of the case.
    """
    of_case = {row.implementation: row for row in rows}
    for one in tallies:
        if one["implementation"] in of_case:
            row = of_case[one["implementation"]]
            _complete(one)
            kind, ratio = counted(of_case, first, one["implementation"], one["against"])
            one["counts"][kind] = one["counts"].get(kind, 0) + 1
            if ratio:
                add_ratio(one, ratio)
            if can_conclude(row.status, row.tags):
                add_share_of_limit(one, row.share_of_limit)


def _complete(tally: Tally) -> None:
    """Add the members that an older server has not stored."""
    for name, value in NOTHING.items():
        tally.setdefault(name, value)  # type: ignore[misc]  # names and values are those of Sums


def outcome_of(tally: Tally) -> JobOutcome:
    """The outcome of the cases that were counted; its typical ratio is the geometric mean."""
    _complete(tally)
    counts, names = tally["counts"], (tally["implementation"], tally["against"])
    return JobOutcome(
        implementation=tally["implementation"],
        against=tally["against"],
        counts=tally["counts"],
        typical=math.exp(tally["log_sum"] / tally["ratios"]) if tally["ratios"] else None,
        score=score_of(*names, tally, counts.get("faster", 0), sum(counts.values())),
    )


def main_outcome(outcomes: Sequence[JobOutcome]) -> JobOutcome | None:
    """The outcome that lists show: the first with a verdict, or else the first one."""
    decided = (
        one
        for one in outcomes
        if any(kind in one.counts for kind in (*DECIDED, UNDECIDED, NO_INTERVAL))
    )
    return next(decided, next(iter(outcomes), None))


def conclusive(outcomes: Iterable[JobOutcome]) -> list[JobOutcome]:
    """The outcomes that say something: some case has a verdict, or is right or failed."""
    known = {sentence(one): one for one in outcomes if {*one.counts} - {NO_VERDICT, NO_OTHER}}
    return [*known.values()]


def sentence(outcome: JobOutcome) -> str:
    """Such as "ann/tiles: faster than torch in 1 of 4 cases, undecided in 3; it typically takes 0.96x
    the time"."""
    words = {
        "faster": f"faster than {outcome.against}",
        "slower": f"slower than {outcome.against}",
        "same": f"as fast as {outcome.against}",
        UNDECIDED: UNDECIDED,
        NO_OTHER: f"not compared ({outcome.against} has no time that counts)",
        NO_VERDICT: "no verdict",
        NO_INTERVAL: "without an interval",
        TIMED: "timed",
    }
    if not {*DECIDED} & {*outcome.counts}:
        words[UNDECIDED] = f"undecided against {outcome.against}"
        words[NO_INTERVAL] = f"without an interval against {outcome.against}"
    parts = _in_cases(outcome, words, " cases")
    typically = "typically " if outcome.cases > 1 else ""
    times = ""
    if outcome.typical is not None and outcome.against == LIMIT:
        times = f"; it {typically}reaches {1 / outcome.typical:.0%} of the limit"
    elif outcome.typical is not None:
        times = f"; it {typically}takes {factor(outcome.typical)} the time"
    return f"{outcome.implementation}: {', '.join(parts)}{times}"


def chip_of(job: JobInfo) -> Chip | None:
    """What lists show of a job in place of its state; None if its state says more."""
    outcome = job.outcome
    if outcome is None or job.state not in (*COMPLETED, "failed"):
        return None
    level = _level(outcome)
    if job.state == "failed":
        level = "bad"
    elif job.state == "partial" and level != "bad":  # perhaps because of an implementation besides
        level = "partial"
    return Chip(chip_text(outcome), level)


def chip_text(outcome: JobOutcome) -> str:
    """The outcome in a few words for a list, such as "tiles 0.92x of torch, faster in 1 of 4,
    undecided 3", "tiles: wrong result in 2 of 4" or "tiles: 2 of 3 without a time"."""
    name = short(outcome.implementation)
    if wrong := outcome.counts.get("wrong_result"):
        return f"{name}: wrong result" + _of(wrong, outcome.cases)
    if without := _without_time(outcome):
        lacks = "without a time" if RIGHT not in outcome.counts else "not right"
        return f"{name}: {without} of {outcome.cases} {lacks}"
    if other := outcome.counts.get(NO_OTHER):
        return f"{short(outcome.against)}: {other} of {outcome.cases} without a time"
    parts = _in_cases(outcome, {})
    if outcome.typical is None:
        return f"{name}: {', '.join(parts)}"
    if outcome.against == LIMIT:
        return f"{name} at {1 / outcome.typical:.0%} of the limit"
    return f"{name} {factor(outcome.typical)} of {short(outcome.against)}, {', '.join(parts)}"


def _level(outcome: JobOutcome) -> Level:
    counts = outcome.counts
    if "wrong_result" in counts:
        return "bad"
    if _without_time(outcome) or NO_OTHER in counts:
        return "partial"
    return (
        "none" if {NOT_TIMED, "unchecked", NO_VERDICT, NO_INTERVAL}.intersection(counts) else "good"
    )


def factor(ratio: float) -> str:
    """A ratio of times, such as "0.92x"."""
    return f"{ratio:.2f}x" if 0.1 <= ratio < 10 else f"{ratio:.3g}x"


def short(name: str) -> str:
    """The name of an implementation without its user and version."""
    return name.partition("@")[0].rpartition("/")[2]


def why_undecided(low: float, high: float, margin: float, precision: str | None = None) -> str:
    """Why the verdict on a ratio is undecided, and what would help.

    Args:
        low, high: the ratio's interval.
        margin: log ratios within it are the same.
        precision: with which the job measured.
    """
    longer = {"quick": "standard", "standard": "publish"}.get(precision or "")
    helps = f"; --precision {longer} measures longer" if longer else ""
    percent = 100 * margin
    noise = f"± {percent:.1f} %" if percent < 10 else f"± {percent:.0f} %"
    # Within a margin as wide as the noise, nothing is called the same.
    within = max(-math.log(low), math.log(high)) <= margin
    lies = "lies within this machine's noise," if within else "crosses the margin of"
    return f"the interval {low:.3f} to {high:.3f} {lies} {noise}{helps}"


def _in_cases(outcome: JobOutcome, words: Mapping[str, str], cases: str = "") -> list[str]:
    """Each kind with the number of its cases, verdicts first, and first the most frequent."""
    counts = outcome.counts
    kinds = sorted((kind for kind in DECIDED if kind in counts), key=lambda kind: -counts[kind])
    kinds += [
        kind
        for kind in (UNDECIDED, NO_INTERVAL, TIMED, NOT_TIMED, RIGHT, NO_VERDICT, NO_OTHER)
        if kind in counts
    ]
    kinds += sorted({*counts} - {*kinds})
    parts = []
    for number, kind in enumerate(kinds):
        word = words.get(kind) or STATUS_WORDS.get(kind, kind)
        if kind == NOT_TIMED:
            word = RIGHT
        if outcome.cases == 1:
            part = word
        elif number == 0:
            part = f"{word} in {counts[kind]} of {outcome.cases}{cases}"
        else:
            part = f"{word} {'in ' if cases else ''}{counts[kind]}"
        parts.append(f"{part}, not timed: no GPU" if kind == NOT_TIMED else part)
    return parts


def _without_time(outcome: JobOutcome) -> int:
    """Number of cases in which the implementation failed."""
    return sum(
        count
        for kind, count in outcome.counts.items()
        if kind in STATUS_WORDS and kind != "unchecked"
    )


def _of(number: int, total: int) -> str:
    return f" in {number} of {total}" if total > 1 else ""
