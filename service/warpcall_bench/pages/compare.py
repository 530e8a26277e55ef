"""The pages that compare: two jobs (what changed, the code or the machine?), or the first two
implementations of one job (is the second one slower?)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pydantic_core
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.jobs import JobDetails
from warpcall.jobs.results import ComparedRow, Comparison
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.jobs import answers, submissions
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.pages import results
from warpcall_bench.pages.sharing import sharing
from warpcall_bench.pages.sortable import ordered
from warpcall_bench.pages.view import REST, View, render
from warpcall_bench.summaries.regression import regression
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.text import brief

LATEST = 30  # jobs that the form proposes
MOST_ROWS = 500  # of the table
MOST_JOBS = 6  # that are compared
PAIR = 2  # jobs, which have a page with a plot
COLUMNS = {
    "case": "name",
    "implementation": "row.implementation",
    "first µs": "row.a_us",
    "second µs": "row.b_us",
    "ratio": "row.ratio",
    "verdict": "row.verdict",
    "margin": "row.margin",
}
ORDER = {"slower": 0, "faster": 1, "undecided": 2, "same": 3}
NO_MARGIN = 4  # the order of rows without a margin: nothing can be said of them
NO_VERDICT = 5  # the order of rows whose times are no basis for a verdict


@dataclass(frozen=True, slots=True)
class SeveralRow:
    """An implementation in a case: what it took in the first job, and how others compare with it."""

    name: str
    implementation: str
    first_us: float | None
    cells: list[ComparedRow | None]


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with its places in the plot, in percent."""

    row: ComparedRow
    name: str
    at: float | None
    low: float | None
    high: float | None
    band: tuple[float, float] | None


def form_page(session: Session, view: View, a: str, b: str, devices: Devices) -> str:
    """The page with which two jobs are chosen."""
    found = answers.jobs(session, view.caller, Filter(limit=LATEST), devices).jobs
    op = submissions.find(session, view.caller, a).op if a else None
    proposed = [job for job in found if job.finished_at and op in (None, job.op) and job.id != a]
    return render("compare_form.html", view, a=a, b=b, proposed=proposed)


async def comparison_page(
    jobs: JobService, caller: Caller, view: View, a: str, b: str
) -> AsyncGenerator[str, None]:
    """The page in two parts. The first one, with what differs between the machines, comes at once;
    then a lane compares the samples, which takes some 5 ms for each case.

    Raises:
        NotFound: one of the jobs does not exist, or the caller may not see it.
        Busy: the user has too many exports and comparisons under way.
    """
    ordered(view, "", (), [*COLUMNS])  # what it refuses is refused before the page begins
    parts = jobs.compare(caller, a, b)
    try:
        head = await anext(parts)
        empty = pydantic_core.from_json(head + b'],"only_a":[],"only_b":[]}')
        devices = jobs.scheduler.devices
        frame = await jobs.read(caller, _frame, view, empty, devices)
        before, _, after = frame.partition(REST)
        yield before
        text = bytearray(head)
        async for part in parts:
            text += part
    finally:
        await parts.aclose()
    yield await jobs.read(caller, comparison_rows, view, bytes(text)) + after


async def several_page(
    jobs: JobService, caller: Caller, view: View, ids: Sequence[str]
) -> AsyncGenerator[str, None]:
    """The page of more than two jobs, in two parts: each job is compared with the first one.

    Raises:
        NotFound: one of the jobs does not exist, or the caller may not see it.
        Busy: the user has too many exports and comparisons under way.
    """
    ordered(view, "", (), [*_several_columns(ids[1:])])
    frame = await jobs.read(caller, _several_frame, view, ids, jobs.scheduler.devices)
    before, _, after = frame.partition(REST)
    yield before
    found = []
    for other in ids[1:]:
        async with aclosing(jobs.compare(caller, ids[0], other)) as parts:
            found.append(b"".join([part async for part in parts]))
    yield await jobs.read(caller, _several_rows, view, found) + after


def address_of(session: Session, view: View, ids: Sequence[str]) -> str:
    """The address of the comparison of jobs that were ticked in a list, with the earliest first.

    Raises:
        InvalidInput: they are too many.
        NotFound: one of them does not exist, or the caller may not see it.
    """
    if len(ids) > MOST_JOBS:
        raise InvalidInput(
            f"at most {MOST_JOBS} jobs can be compared at once, got {len(ids)}", field="job"
        )
    jobs = [submissions.find(session, view.caller, one) for one in ids]
    found = [job.id for job in sorted(jobs, key=lambda job: job.number)]
    if len(found) > PAIR:
        return view.url("compare", jobs=",".join(found))
    a, b, *_ = [*found, "", ""]
    return view.url("compare", a=a, b=b)


def several_of(text: str) -> list[str]:
    """The ids in a list that is separated by commas.

    Raises:
        InvalidInput: they are too few or too many, or not different.
    """
    ids = text.split(",")
    if not PAIR <= len({*ids}) == len(ids) <= MOST_JOBS:
        raise InvalidInput(
            f"jobs must be {PAIR} to {MOST_JOBS} different ids, separated by commas, got "
            f"{brief(text)}",
            field="jobs",
        )
    return ids


def _several_columns(others: Sequence[str]) -> dict[str, str]:
    rows = {name: f"cells.{n}.ratio" for n, name in enumerate(others)}
    return {"case": "name", "implementation": "implementation", "first µs": "first_us", **rows}


def _several_frame(session: Session, view: View, ids: Sequence[str], devices: Devices) -> str:
    found = [answers.job(session, view.caller, one, devices) for one in ids]
    return render("compare_several.html", view, jobs=found)


def _several_rows(session: Session, view: View, texts: Sequence[bytes]) -> str:
    """The rows, from the JSON of the comparisons with the first job."""
    found = [checked(Comparison, pydantic_core.from_json(text)) for text in texts]
    rows: dict[tuple[str, str], SeveralRow] = {}
    for number, comparison in enumerate(found):
        for row in comparison.rows:
            empty = SeveralRow(
                results.case_name(row.case.partition(" ")[0], row.case),
                row.implementation,
                row.a_us,
                [None] * len(found),
            )
            rows.setdefault((row.case, row.implementation), empty).cells[number] = row
    leads = []
    for comparison in found:
        counts: Counter[str] = Counter(row.verdict or "none" for row in comparison.rows)
        leads.append(_lead(counts, len(comparison.rows), comparison.b))
    others = [comparison.b for comparison in found]
    return render(
        "compare_several_rows.html",
        view,
        rows=[*rows.values()],
        others=others,
        columns=_several_columns(others),
        leads=leads,
        MOST_ROWS=MOST_ROWS,
    )


def regression_page(session: Session, view: View, job_id: str, allowed: float) -> str:
    """The page as text.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
        InvalidInput: the job has only one implementation.
    """
    check = regression(session, view.caller, job_id, allowed)
    percent = f"{100 * allowed:g}"
    data = view.data(check.jobs[0], "regression", allowed=allowed)
    return render(
        "regression.html",
        view,
        check=check,
        percent=percent,
        markdown=check.to_markdown(),
        data=data,
        data_markdown=f"{data}&format=markdown",
    )


def _frame(session: Session, view: View, empty: dict[str, Any], devices: Devices) -> str:
    pair = [answers.job(session, view.caller, empty[name], devices) for name in ("a", "b")]
    return render(
        "compare.html",
        view,
        pair=pair,
        same=empty["same_environment"],
        differences=_differences(empty["differences"], pair),
        sharing=sharing(session, view, *pair),
    )


def _differences(
    facts: dict[str, list[Any]], pair: Sequence[JobDetails]
) -> list[tuple[str, str, str]]:
    """What differs besides the times: facts of the machines, then sources, the request."""
    found = [(numbers.fact(name), *map(_short, values)) for name, values in facts.items()]
    first, second = pair
    for name in sorted({*first.sources} | {*second.sources}):
        one, other = first.sources.get(name), second.sources.get(name)
        if one and other and one != other:
            found.append((f"source of {name}", one[:12], other[:12]))
    if first.precision != second.precision:
        found.append(("precision", first.precision, second.precision))
    return [(str(a), str(b), str(c)) for a, b, c in found]


def _short(value: object) -> str:
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= 40 else text[:12]


def comparison_rows(session: Session, view: View, text: bytes) -> str:
    """The rows of a comparison, from its JSON."""
    found = checked(Comparison, pydantic_core.from_json(text))
    rows = sorted(found.rows, key=_evidence)
    axis = log_axis(
        [end for row in rows for end in (row.ratio, row.ratio_low, row.ratio_high)],
        "×",
        around=1.0,
        least_room=1.01,
    )
    counts: Counter[str] = Counter(row.verdict or "none" for row in rows)
    return render(
        "compare_rows.html",
        view,
        rows=[_compared(row, axis) for row in rows],
        MOST_ROWS=MOST_ROWS,
        columns=COLUMNS,
        axis=axis,
        lead=_lead(counts, len(rows)),
        unknown=sum(row.margin is None and not row.why for row in rows),
        only=[("the first", found.only_a), ("the second", found.only_b)],
        data=view.data(found.a, "compare", *([] if view.share else [found.b])),
    )


def _evidence(row: ComparedRow) -> tuple[int, float]:
    """What is surely different comes first, by how far its interval is from the margin."""
    if row.ratio is None or row.verdict is None:
        return NO_VERDICT, 0.0
    low, high = math.log(row.ratio_low or row.ratio), math.log(row.ratio_high or row.ratio)
    beyond = max(low, -high) - (row.margin or 0.0)
    return NO_MARGIN if row.margin is None else ORDER[row.verdict], -beyond


def _compared(row: ComparedRow, axis: LogAxis) -> Compared:
    op = row.case.partition(" ")[0]
    band = None
    if row.margin is not None:
        begin, end = axis.at(math.exp(-row.margin)), axis.at(math.exp(row.margin))
        band = (begin, round(end - begin, 2))
    ends = (row.ratio, row.ratio_low or row.ratio, row.ratio_high or row.ratio)
    at, low, high = (None if end is None else axis.at(end) for end in ends)
    return Compared(row, results.case_name(op, row.case), at, low, high, band)


def _lead(counts: Counter[str], total: int, job: str = "") -> str:
    begin = f"{job}: no" if job else "No"
    if not total:
        return f"{begin} case has samples in both jobs, so there is nothing to compare."
    parts = [
        f"{words} in {counts[verdict]}"
        for verdict, words in (
            ("slower", "slower"),
            ("faster", "faster"),
            ("same", "the same"),
            ("undecided", "undecided"),
            ("none", "without a verdict"),
        )
        if counts[verdict]
    ]
    if counts["undecided"] + counts["none"] == total:
        return f"{begin} difference is certain in {numbers.count(total, 'row')}."
    return f"{job or 'The second job'} is {', '.join(parts)} of {numbers.count(total, 'row')}."
