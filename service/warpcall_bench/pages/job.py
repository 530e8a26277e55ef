"""The page of a job: where it stands, and what it has measured."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpcall.artefacts import Artefact
from warpcall.jobs import UNFINISHED, JobActivity, JobDetails
from warpcall.jobs.outcomes import conclusive, outcomes_of
from warpcall_bench.artefacts import database as artefacts
from warpcall_bench.artefacts.contents import SHOWN_KINDS
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.jobs import answers as job_answers
from warpcall_bench.jobs import sanitized, submissions
from warpcall_bench.jobs.lifecycle import is_race
from warpcall_bench.jobs.measurements import measurements
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.tables import SCRATCH, Job
from warpcall_bench.pages import answers, results
from warpcall_bench.pages.answers import HeatRow
from warpcall_bench.pages.phases import bar, label_of
from warpcall_bench.pages.races import race_of, racing_colours
from warpcall_bench.pages.results import COLOURS
from warpcall_bench.pages.scratch import scratch_page
from warpcall_bench.pages.sharing import sharing
from warpcall_bench.pages.sizes import panels
from warpcall_bench.pages.view import REST, View, render
from warpcall_bench.summaries.progress import activity, last_sequence, phases
from warpcall_bench.uploads import odd_cases

PAGE_CASES = 20  # whose rows are on one page
FEW_CASES = 8  # up to here, the rows come before the overviews
HEAT_FROM = 4  # cases from which on there is a heat map
HEAT_ROWS = 32  # of a part of the heat map; the parts stand side by side
HEAT_CASES = 96  # with more cases, the heat map has this many, unless a reader asks for all
NO_HOSTS: Mapping[str, str] = {}
# Facts of an environment that a reader looks for first.
FIRST_FACTS = ("device", "driver", "torch", "triton", "cuda", "python")


@dataclass(frozen=True, slots=True)
class Paging:
    """Links to other cases of a job: the position of the first case of a page, or None."""

    first: int
    before: int | None
    after: int | None


async def job_page(
    jobs: JobService,
    view: View,
    job_id: str,
    first: int,
    all_ratios: bool = False,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> AsyncGenerator[str, None]:
    """The page in two parts. The first one says where the job stands. What it has measured takes
    longer to read and to draw, by some 60 ms for 500 cases, and follows.

    Args:
        hosts: names of the servers by id, if there are several.
        first: position of the first case whose rows are shown.
        all_ratios: whether the heat map has all cases, however many there are.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
    """
    devices = jobs.scheduler.devices
    frame = await jobs.read(view.caller, job_frame, view, job_id, devices, hosts)
    before, has_rest, after = frame.partition(REST)
    yield before
    if has_rest:
        yield await jobs.read(view.caller, job_rest, view, job_id, first, all_ratios) + after


def job_frame(
    session: Session, view: View, job_id: str, devices: Devices, hosts: Mapping[str, str] = NO_HOSTS
) -> str:
    """The page without what was measured, which belongs where REST stands. That of a scratch run is whole.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
    """
    row = submissions.find(session, view.caller, job_id, any_kind=True)
    if row.kind == SCRATCH:
        return scratch_page(session, view, row, devices, hosts)
    job = job_answers.job(session, view.caller, job_id, devices)
    running = row.state in UNFINISHED
    now = activity(session, row)
    return render(
        "job.html",
        view,
        job=job,
        running=running,
        host=hosts.get(job.node, ""),
        doing=now,
        doing_what="" if now is None else label_of(now.phase),
        live=[] if now is None else _live(now, racing_colours(job.implementations, now.medians_us)),
        sequence=last_sequence(session, row) if running else 0,
        phases=bar(phases(session, row)) if running else [],
        current=_case_now(session, row) if running else "",
        # The page shows the detail of the job above.
        remarks=[
            *job_answers.device_remarks(row),
            *odd_cases.remarks(session, row),
            *(sanitized.remarks(measurements(session, row)) if job.request.get("sanitize") else []),
        ],
        request=json.dumps(job.request, indent=2, ensure_ascii=False),
        facts=_facts(job),
        sharing=sharing(session, view, job),
        artefacts=_artefacts(session, view, row),
        shown_kinds=SHOWN_KINDS,
    )


def job_rest(
    session: Session, view: View, job_id: str, first: int, all_ratios: bool = False
) -> str:
    """What a job has measured, and where its time went.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
    """
    row = submissions.find(session, view.caller, job_id)
    implementations: list[str] = json.loads(row.implementations)
    rows = measurements(session, row)
    found, heat = answers.answers(row, rows)
    running = row.state in UNFINISHED
    raced = race_of(session, row, rows, first, PAGE_CASES) if is_race(row) else None
    cases = job_answers.cases(session, row, rows, first, PAGE_CASES + 1)
    blocks, axis = results.blocks(row, cases)
    return render(
        "job_results.html",
        view,
        job=row,
        implementations=implementations,
        running=running,
        race=raced,
        answers=found,
        # The detail of a partial job names its failures.
        failures=[] if row.state == "partial" else answers.failures(found),
        without_verdict=answers.without_verdict(found),
        heat=_heat(heat, all_ratios),
        heat_total=len(heat),
        blocks=blocks[:PAGE_CASES],
        axis=axis,
        limited=any(block.limit_at is not None for block in blocks),
        paging=_paging(row, first, len(blocks)),
        panels=panels(row, rows, job_answers.specs(session, row)),
        phases=[] if running else bar(phases(session, row)),
        times=None if running else job_answers.times(row),
        colours=results.colours(implementations),
        checks_only=answers.checks_only(row),
        rivals=implementations if answers.checks_only(row) else results.rivals_of(implementations),
        about=conclusive(outcomes_of(implementations, rows)),
        inverted=answers.is_inverted(implementations),
        FEW_CASES=FEW_CASES,
        HEAT_ROWS=HEAT_ROWS,
    )


def _artefacts(session: Session, view: View, row: Job) -> list[Artefact]:
    """The job's files; none for guests, because a share link does not show them."""
    found = () if view.is_guest else artefacts.of_job(session, row)
    return list(map(artefacts.described, found))


def _heat(rows: list[HeatRow], all_ratios: bool) -> list[HeatRow]:
    """The rows of the heat map. Of very many, those in which the first implementation does worst."""
    if all_ratios or len(rows) <= HEAT_CASES:
        return rows if len(rows) >= HEAT_FROM else []
    return sorted(rows, key=lambda row: row.least)[:HEAT_CASES]


def _paging(row: Job, first: int, found: int) -> Paging:
    before = max(0, first - PAGE_CASES) if first > 0 else None
    return Paging(first, before, first + PAGE_CASES if found > PAGE_CASES else None)


@dataclass(frozen=True, slots=True)
class Live:
    """The median of an implementation so far. Places are in percent, as in `results.Plotted`."""

    name: str
    colour: int
    us: float
    axis: LogAxis
    at: float
    low: float
    high: float


def _live(now: JobActivity, colours: Mapping[str, int]) -> list[Live]:
    """The medians so far. Their intervals have the width of the widest one of a ratio."""
    factor = 1 + (now.half_width or 0.0)
    medians = now.medians_us
    ends = [end for us in medians.values() for end in (us / factor, us * factor)]
    axis = log_axis(ends, " µs")
    return [
        Live(
            name,
            colours.get(name, COLOURS),
            us,
            axis,
            axis.at(us),
            axis.at(us / factor),
            axis.at(us * factor),
        )
        for name, us in medians.items()
    ]


def _case_now(session: Session, row: Job) -> str:
    """The name of the first case without a result."""
    case = job_answers.first_without_result(session, row)
    return "" if case is None else results.case_name(row.op, case.key)


def _facts(job: JobDetails) -> list[tuple[str, Any]]:
    """The facts of the environment, those that matter most first."""
    known = job.fingerprint or {}
    order = [*FIRST_FACTS, *sorted({*known} - {*FIRST_FACTS})]
    return [(numbers.fact(name), known[name]) for name in order if known.get(name) is not None]
