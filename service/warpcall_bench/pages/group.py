"""The page of a group: what the same job takes on several models of a GPU, a column for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from warpcall.groups import GroupPart, GroupRow, typical
from warpcall.jobs import UNFINISHED, lacking, with_article
from warpcall.jobs.results import Measurement
from warpcall_bench.drawing import numbers
from warpcall_bench.groups import answers, database
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.pages import results
from warpcall_bench.pages.view import View, render

MOST_CASES = 100  # that the page shows; exports have all
MOST_SENTENCES = 16
NO_HOSTS: Mapping[str, str] = {}


def group_page(
    session: Session,
    view: View,
    group_id: str,
    devices: Devices,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> str:
    """The page as text.

    Args:
        hosts: names of the servers by id, if there are several.

    Raises:
        NotFound: there is no such group, or the caller may not see it.
    """
    row = database.find(session, view.caller, group_id)
    found = database.parts(session, row)
    group = answers.info(session, view.caller, row, found, devices)
    known = answers.times(session, view.caller, found)
    jobs = [part.job for part in group.parts if part.job is not None]
    gpus = [part.gpu for part in group.parts]
    rows = answers.rows(session, view.caller, found, range(MOST_CASES))
    sentences = [one.sentence() for one in typical(known, gpus)]
    first = jobs[0]
    ended = [job.id for job in jobs if job.finished_at]
    return render(
        "group.html",
        view,
        group=group,
        first=first,
        hosts=hosts,
        where=[_where(part) for part in group.parts],
        running=any(job.state in UNFINISHED for job in jobs),
        may_change=view.caller.may("bench") and view.caller.owns(group.user),
        sentences=sentences[:MOST_SENTENCES],
        rows=[_Shown(one) for one in rows],
        columns=_columns(gpus),
        further=max(0, first.cases_total - MOST_CASES),
        ended=ended,
        lead=_lead(group.parts),
        remarks=answers.remarks(session, view.caller, found),
    )


class _Shown:
    """A row of the table."""

    def __init__(self, row: GroupRow) -> None:
        self.name = results.case_name(row.case.partition(" ")[0], row.case)
        self.position = row.position
        self.implementation = row.implementation
        self.cells: Sequence[Measurement | None] = row.times


def _columns(gpus: Sequence[str]) -> dict[str, str]:
    """What sorts each column: that of a model by the times on it."""
    times = {gpu: f"cells.{n}.median_us" for n, gpu in enumerate(gpus)}
    return {"case": "name", "implementation": "implementation", **times}


def _where(part: GroupPart) -> str:
    """What a part waits for, or where it stands."""
    job = part.job
    if job is None:
        return "private to another user"
    if part.waits_for_device:
        return f"{lacking(job)}: no server that runs has one"
    if job.state == "queued":
        return f"number {job.position} in the queue, starts in about {numbers.span(job.starts_in_s or 0)}"
    if job.state in UNFINISHED:
        return f"{job.cases_done} of {numbers.count(job.cases_total, 'case')} done"
    return numbers.count(job.cases_done, "case")


def _lead(parts: Sequence[GroupPart]) -> str:
    """How many parts have ended, and what the others wait for."""
    over = [p for p in parts if p.job is not None and p.job.state not in UNFINISHED]
    lacking = [with_article(part.gpu) for part in parts if part.waits_for_device]
    if len(over) == len(parts):
        return ""
    text = f"{len(over)} of {len(parts)} parts have ended."
    if not lacking:
        return text
    models, more = ", ".join(lacking), len(lacking) > 1
    end = "begin by themselves" if more else "begins by itself"
    return f"{text} {len(lacking)} wait{'s' * (not more)} for {models}, and {end}."
