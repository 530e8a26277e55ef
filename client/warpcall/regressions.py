"""Regression checks: is one implementation slower than another? Types, and how a check is decided.

A check measures `base` and `head` in the rounds of one job, case by case. What a job leaves open is
measured again in another job, because a second process has other addresses, and a machine may have
been busy. Every second job has `head` first, so that an advantage of the first place cancels. The
jobs are combined into one interval, which includes by how much jobs differ.

A case is slower only if two jobs found it: with one job, chance alone would find a regression now
and then in a check of many cases.

`judge` decides from the results of the jobs, in the client and in the server alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from warpcall._extras.tables import Table
from warpcall._intervals import Interval, combined
from warpcall.jobs import Payload
from warpcall.jobs.results import (
    Comparison,
    Measurement,
    Results,
    can_conclude,
    why_no_verdict,
)

Outcome = Literal["passed", "slower", "failed", "undecided"]
"""What a check says of `head`. "failed" means that it has no time: it raised an exception, or its
result is wrong."""

ALLOWED = 0.01
"""By how much `head` may take longer by default, as a share of the time of `base`."""
MOST_ALLOWED = 1.0
JOBS = 3
"""Jobs of one check, at most."""
SLOWER_JOBS = 2
"""Jobs that must have found a case slower than allowed."""
TAG = "regression"
"""The tag of the jobs of checks."""
_REPEATS = "repeats-"
# The order of the rows: what a reader must know comes first.
ORDER: tuple[Outcome, ...] = ("failed", "slower", "undecided", "passed")
# Of the table in Markdown. A comment on a pull request of GitHub may have 65,536 characters.
MOST_ROWS = 50
MOST_CHARACTERS = 60_000


@dataclass(frozen=True, kw_only=True)
class RegressionRow(Payload):
    """What a check says of one case. The times are those of the last job that measured it, and the
    ratio is that of all jobs together."""

    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    outcome: Outcome
    """What the jobs say of the case together."""
    base_us: float | None
    """Median of `base` in microseconds; null if it has none."""
    head_us: float | None
    """Median of `head` in microseconds; null if it has none."""
    ratio: float | None
    """Time of `head` over that of `base`; above 1 means that `head` is slower."""
    ratio_low: float | None
    """Lower end of the ratio's 95 % interval, which includes by how much jobs differ; null if there
    are too few samples."""
    ratio_high: float | None
    """Upper end of that interval; null if there are too few samples."""
    jobs: int
    """Number of jobs that measured the case."""
    why: str
    """Why there is no time, or why the case is undecided, for readers; empty if there is nothing to
    say."""


@dataclass(frozen=True, kw_only=True)
class Regression(Table, Payload):
    """A regression check. Its rows begin with those that failed or are slower."""

    SHOWN: ClassVar = ("case", "outcome", "base_us", "head_us", "ratio", "ratio_low", "ratio_high")

    op: str
    """Name of the op."""
    base: str
    """Name of the implementation that `head` is compared with, or the id of the job whose stored
    times it is compared with."""
    head: str
    """Name of the implementation that is checked."""
    outcome: Outcome
    """What the check says: the first of "failed", "slower" and "undecided" that a row says, or
    "passed"."""
    allowed: float
    """By how much `head` may take longer, as a share of the time of `base`: 0.01 is 1 %."""
    device: str | None
    """Name of the device that measured; null if no job has begun."""
    jobs: list[str]
    """Ids of the jobs that measured, the first one first."""
    rows: list[RegressionRow]
    """A row for each case."""

    def to_rows(self) -> list[dict[str, object]]:
        """`rows`, each as a dict."""
        return [row.to_dict() for row in self.rows]

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        counts = {one: sum(row.outcome == one for row in self.rows) for one in ORDER}
        total = f"{len(self.rows)} case{'s' * (len(self.rows) != 1)}"
        if self.outcome == "failed":
            return f"{self.head} has no time in {counts['failed']} of {total}."
        if self.outcome == "slower":
            return f"{self.head} is slower than {self.base} in {counts['slower']} of {total}."
        if self.outcome == "undecided":
            open_ = counts["undecided"]
            if not self.rows:
                return "Nothing was measured."
            return f"It is undecided whether {self.head} is slower than {self.base} in {open_} of {total}."
        if self.base == self.head:
            return f"{self.head} is compared with itself, so nothing was measured."
        more = f"{100 * self.allowed:g} %"
        return f"{self.head} takes at most {more} longer than {self.base} in {len(self.rows)} of {total}."

    def to_markdown(self, links: str | None = None) -> str:
        """The check as Markdown for a comment on a pull request, with at most 50 rows.

        Args:
            links: URL to which the id of a job is added, such as "http://gpu-1:8000/jobs/".
        """
        return _markdown(self, links)


def tag_of_repeats(job: str) -> str:
    """The tag of the jobs that measure again what the first job of a check, `job`, left open."""
    return f"{_REPEATS}{job}"


def first_of(tags: Sequence[str]) -> str | None:
    """The id of the first job of the check to which a job with these tags belongs, if it repeats
    one."""
    return next((tag.removeprefix(_REPEATS) for tag in tags if tag.startswith(_REPEATS)), None)


def judge(
    results: Sequence[Results], op: str, base: str, head: str, allowed: float = ALLOWED
) -> Regression:
    """What one or more jobs say of `head`, measured beside `base`.

    The log ratios of the jobs are combined into their mean, weighted by precision, and a 95 %
    interval. The standard deviation of each job is that of its own interval and 0.2 % together. If
    the jobs differ by more than that explains, the interval is widened, on each side by as much as
    the jobs on that side demand (Birge 1932).

    A case passed if the upper end of the interval is at most 1 + `allowed`. It is slower if the
    lower end is above that, and the ratio of at least two jobs is. Otherwise it is undecided. So
    one job alone can only pass a case. Times that are no basis for a verdict, such as those of an
    interpreted kernel, decide nothing.

    Args:
        results: of the jobs, the first one first. Later jobs need not have all cases, and may have
            the implementations in any order.
        op: name of the op.
        base, head: names of the two implementations.
        allowed: by how much `head` may take longer, as a share of the time of `base`.
    """
    seen: dict[str, list[_Seen]] = {}
    for one in results:
        rows = {(row.case, row.implementation): row for row in one.measurements}
        for case in dict.fromkeys(row.case for row in one.measurements):
            before, after = rows.get((case, base)), rows.get((case, head))
            if before is None or after is None:
                continue
            without = [row for row in (after, before) if not can_conclude(row.status, row.tags)]
            seen.setdefault(case, []).append(
                _Seen(
                    base_us=before.median_us,
                    head_us=after.median_us,
                    interval=None if without else _interval(before, after),
                    failed=after.status != "ok",
                    why=_why_open(without[0]) if without else "",
                )
            )
    facts = [one.fingerprint or {} for one in results]
    device = next((str(found["device"]) for found in facts if found.get("device")), None)
    return _decided(seen, op, base, head, allowed, device, [one.id for one in results])


def judge_stored(
    comparisons: Sequence[Comparison],
    op: str,
    head: str,
    device: str | None,
    allowed: float = ALLOWED,
) -> Regression:
    """What one or more jobs say of `head` beside the times that an earlier job stored.

    As `judge`, but all jobs are compared with the same stored times, so a deviation of these does
    not average out. A case is slower only if two jobs differ from the stored one by more than two
    jobs of the same code do. This margin is known only where the same has been measured repeatedly.
    Without it nothing is decided.

    Args:
        comparisons: of the earlier job with each of the jobs.
        op: name of the op.
        head: name of the implementation.
        device: name of the device that measured.
        allowed: by how much `head` may take longer, as a share of the stored time.
    """
    seen: dict[str, list[_Seen]] = {}
    for one in comparisons:
        for row in one.rows:
            if row.implementation != head:
                continue
            known = row.margin is not None and row.ratio is not None
            seen.setdefault(row.case, []).append(
                _Seen(
                    base_us=row.a_us,
                    head_us=row.b_us,
                    interval=Interval.of(row.ratio, row.ratio_low, row.ratio_high)
                    if known
                    else None,
                    is_noise=row.verdict != "slower",
                    failed=False,
                    why=row.why or ("" if known else "no margin between two runs is known here"),
                )
            )
    stored = f"the job {comparisons[0].a}" if comparisons else "the stored job"
    return _decided(seen, op, stored, head, allowed, device, [one.b for one in comparisons])


def judge_same(op: str, name: str, allowed: float = ALLOWED) -> Regression:
    """The check of an implementation against itself, which passes and needs no job."""
    return Regression(
        op=op,
        base=name,
        head=name,
        outcome="passed",
        allowed=allowed,
        device=None,
        jobs=[],
        rows=[],
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one job measured of a case.

    Args:
        is_noise: whether equal code may differ by as much, whatever the interval says.
    """

    base_us: float | None
    head_us: float | None
    interval: Interval | None
    failed: bool
    why: str
    is_noise: bool = False

    def is_slower(self, allowed: float) -> bool:
        """Whether this job finds that the case is slower than allowed, at any precision."""
        above = self.interval is not None and self.interval.middle > math.log1p(allowed)
        return above and not self.is_noise


def _why_open(row: Measurement) -> str:
    """Why nothing can be concluded from a row, for readers."""
    if row.status != "ok":
        return f"{row.implementation}: {row.error or row.status}"
    why = why_no_verdict(row.status, row.tags)
    return f"no verdict on times that are {why}: those of {row.implementation}"


def _interval(before: Measurement, after: Measurement) -> Interval | None:
    """The ratio of `after` to `before`. A job has the ratios to its first implementation."""
    if after.ratio is not None:
        return Interval.of(after.ratio, after.ratio_low, after.ratio_high)
    found = Interval.of(before.ratio, before.ratio_low, before.ratio_high)
    return None if found is None else Interval(-found.middle, -found.high, -found.low)


def _decided(
    seen: dict[str, list[_Seen]],
    op: str,
    base: str,
    head: str,
    allowed: float,
    device: str | None,
    jobs: list[str],
) -> Regression:
    rows = []
    for case, found in seen.items():
        last = found[-1]
        known = [one.interval for one in found if one.interval is not None]
        together = combined(known) if known else None
        outcome = "failed" if last.failed else _outcome(found, together, allowed)
        why = last.why
        if outcome == "undecided" and not why:
            why = _why_undecided(found, together, allowed)
        rows.append(
            RegressionRow(
                case=case,
                outcome=outcome,
                base_us=last.base_us,
                head_us=last.head_us,
                ratio=None if together is None else math.exp(together.middle),
                ratio_low=None if together is None else math.exp(together.low),
                ratio_high=None if together is None else math.exp(together.high),
                jobs=len(found),
                why=why,
            )
        )
    rows.sort(key=lambda row: (ORDER.index(row.outcome), -(row.ratio_low or row.ratio or 0.0)))
    return Regression(
        op=op,
        base=base,
        head=head,
        outcome=rows[0].outcome if rows else "undecided",
        allowed=allowed,
        device=device,
        jobs=jobs,
        rows=rows,
    )


def _outcome(found: Sequence[_Seen], together: Interval | None, allowed: float) -> Outcome:
    if together is None:
        return "undecided"
    limit = math.log1p(allowed)
    if together.high <= limit:
        return "passed"
    slower = sum(one.is_slower(allowed) for one in found)
    return "slower" if together.low > limit and slower >= SLOWER_JOBS else "undecided"


def _why_undecided(found: Sequence[_Seen], together: Interval | None, allowed: float) -> str:
    if together is None or together.low <= math.log1p(allowed):
        return "the interval is too wide"
    if any(one.is_slower(allowed) for one in found):
        return "only one job says that it is slower"
    return "jobs of the same code differ by as much"


def _markdown(check: Regression, links: str | None) -> str:
    lines = [f"### Warpcall: {_text(check.op)} {check.outcome}", "", _text(check.sentence), ""]
    if check.rows:
        lines += [
            "| case | base µs | head µs | head / base | 95 % interval | outcome |",
            "| :-- | --: | --: | --: | :-- | :-- |",
        ]
    left, shown = MOST_CHARACTERS - sum(map(len, lines)), 0
    for row in check.rows[:MOST_ROWS]:
        interval = (
            ""
            if row.ratio_low is None or row.ratio_high is None
            else f"{row.ratio_low:.3f} to {row.ratio_high:.3f}"
        )
        outcome = f"**{row.outcome}**" if row.outcome in ("slower", "failed") else row.outcome
        why = f": {_text(row.why)}" if row.why else ""
        cells = (
            f"`{_code(row.case)}`",
            _us(row.base_us),
            _us(row.head_us),
            "" if row.ratio is None else f"{row.ratio:.3f}",
            interval,
            f"{outcome}{why}",
        )
        line = f"| {' | '.join(cells)} |"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
        shown += 1
    if shown < len(check.rows):
        lines.append(f"\n{len(check.rows) - shown} more cases are not shown.")
    jobs = ", ".join(f"[{id_}]({links}{id_})" if links else f"`{id_}`" for id_ in check.jobs)
    on = f" on {_text(check.device)}" if check.device else ""
    if check.jobs:
        lines += ["", f"Measured{on} in {jobs}."]
    return "\n".join(lines) + "\n"


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:.4g}" if us < 1000 else f"{us:,.0f}"


def _text(text: str) -> str:
    """A text on one line in which Markdown and HTML see no markup."""
    line = " ".join(text.split())[:200]
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#!|~&" else char for char in line)


def _code(text: str) -> str:
    """A text between backquotes in a table."""
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|")
