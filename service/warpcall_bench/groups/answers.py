"""Groups from the database, as the types that the API answers with, and their results in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.groups import GroupInfo, GroupPart, GroupResults, GroupRow, SubmittedGroup, basis_us
from warpcall.jobs.results import Measurement
from warpcall_bench.groups import database
from warpcall_bench.groups.database import JobPart
from warpcall_bench.groups.tables import JobGroup
from warpcall_bench.jobs import answers, exports, submissions
from warpcall_bench.jobs.exports import Case, Step
from warpcall_bench.jobs.measurements import basis_for_verdict
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.uploads import odd_cases
from warpcall_service.formats.payloads import to_json
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment


def group(session: Session, caller: Caller, group_id: str, devices: Devices) -> GroupInfo:
    """One group.

    Raises:
        NotFound: there is no such group, or the caller may not see it.
    """
    row = database.find(session, caller, group_id)
    return info(session, caller, row, database.parts(session, row), devices)


def info(
    session: Session, caller: Caller, row: JobGroup, found: Sequence[JobPart], devices: Devices
) -> GroupInfo:
    """A group whose parts were found."""
    return GroupInfo(
        id=row.id,
        user=row.user_name,
        created_at=moment(row.created_ms),
        parts=_parts(session, caller, found, devices),
    )


def submitted(
    session: Session, caller: Caller, row: JobGroup, created: bool, devices: Devices
) -> SubmittedGroup:
    """The answer to a submission: the new group, or the one that was found instead."""
    found = info(session, caller, row, database.parts(session, row), devices)
    return SubmittedGroup(**vars(found), reused=not created)


def begin(
    session: Session, caller: Caller, group_id: str, form: str, devices: Devices
) -> Iterator[Step]:
    """The steps that render the results of a group, in order. Each may run in its own transaction.

    Raises:
        NotFound: there is no such group, or the caller may not see it.
    """
    row = database.find(session, caller, group_id)
    found = database.parts(session, row)
    if form == "csv":
        return _csv_steps(session, caller, found)
    shown = _parts(session, caller, found, devices)
    columns = [
        {} if part.job is None else {case.position: case for case in exports.measured(session, job)}
        for part, (_, job) in zip(shown, found, strict=True)
    ]
    empty = GroupResults(id=row.id, parts=shown, remarks=remarks(session, caller, found), rows=[])
    return _json_steps(to_json(empty), [job for _, job in found], columns)


def rows(
    session: Session, caller: Caller, found: Sequence[JobPart], positions: Sequence[int]
) -> list[GroupRow]:
    """What the parts have measured in the cases at these positions."""
    columns = [
        {
            case.position: case
            for case in (
                exports.measured(session, job) if submissions.may_read(caller, job) else ()
            )
            if case.position in positions
        }
        for _, job in found
    ]
    return _rows(session, [job for _, job in found], columns, positions)


def times(
    session: Session, caller: Caller, found: Sequence[JobPart]
) -> dict[tuple[int, str], list[float | None]]:
    """The medians that are a basis for a verdict, by part, for each case and implementation."""
    known: dict[tuple[int, str], list[float | None]] = {}
    for number, (_, job) in enumerate(found):
        if not submissions.may_read(caller, job):
            continue
        query = sa.select(Row.position, Row.implementation, Row.median_us).where(
            Row.job_number == job.number, basis_for_verdict()
        )
        for position, implementation, us in session.execute(query):
            cells = known.setdefault((position, implementation), [None] * len(found))
            cells[number] = basis_us("ok", (), us)
    names = json.loads(found[0].job.implementations)
    return dict(sorted(known.items(), key=lambda one: (one[0][0], names.index(one[0][1]))))


def _parts(
    session: Session, caller: Caller, found: Sequence[JobPart], devices: Devices
) -> list[GroupPart]:
    jobs = answers.jobs_of(session, caller, [job.id for _, job in found], devices)
    return [GroupPart(gpu=gpu, job=jobs.get(job.id)) for gpu, job in found]


def remarks(session: Session, caller: Caller, found: Sequence[JobPart]) -> list[str]:
    """What a reader should know about all results, each after the model that it is about."""
    return [
        f"{gpu}: {remark}"
        for gpu, job in found
        if submissions.may_read(caller, job)
        for remark in (*answers.remarks(job), *odd_cases.remarks(session, job))
    ]


def _json_steps(
    whole: bytes, jobs: Sequence[Job], columns: Sequence[dict[int, Case]]
) -> Iterator[Step]:
    head, bracket, tail = whole.rpartition(b"]}")
    yield lambda session: head
    positions = sorted(set().union(*columns))
    at_once = max(1, exports.PART_CASES // len(jobs))
    for begin in range(0, len(positions), at_once):
        some = positions[begin : begin + at_once]
        yield partial(_json_rows, jobs=jobs, columns=columns, positions=some, comma=begin > 0)
    yield lambda session: bracket + tail


def _json_rows(
    session: Session,
    jobs: Sequence[Job],
    columns: Sequence[dict[int, Case]],
    positions: Sequence[int],
    comma: bool,
) -> bytes:
    texts = [to_json(row) for row in _rows(session, jobs, columns, positions)]
    return exports.joined(texts, comma)


def _rows(
    session: Session,
    jobs: Sequence[Job],
    columns: Sequence[dict[int, Case]],
    positions: Sequence[int],
) -> list[GroupRow]:
    """All jobs of a group have the same cases in the same order, and the same implementations."""
    found: dict[tuple[int, str], list[Measurement | None]] = {}
    for number, (job, cases) in enumerate(zip(jobs, columns, strict=True)):
        some = [cases[position] for position in positions if position in cases]
        for one in exports.rows_of(session, job, some):
            cells = found.setdefault((one.position, one.implementation), [None] * len(jobs))
            cells[number] = one
    of_case = sa.select(JobCase.position, JobCase.key).where(
        JobCase.job_number == jobs[0].number, JobCase.position.in_(positions)
    )
    keys = {position: key for position, key in session.execute(of_case)}
    # A stable sort keeps the implementations of a case in the order of the request.
    return [
        GroupRow(position=position, case=keys[position], implementation=name, times=cells)
        for (position, name), cells in sorted(found.items(), key=lambda one: one[0][0])
    ]


def _csv_steps(session: Session, caller: Caller, found: Sequence[JobPart]) -> Iterator[Step]:
    """The rows of one part after those of another, below one head."""
    steps: list[Step] = []
    for gpu, job in found:
        if not submissions.may_read(caller, job):
            continue
        cases, where = exports.measured(session, job), answers.facts(job, caller) or {}
        head, *others = exports.csv_steps(job, cases, where, {"gpu": gpu, "job": job.id})
        steps += others if steps else [head, *others]
    return iter(steps)
