"""Jobs and their results from the database, as the types that the API answers with."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import NotFound
from warpcall.jobs import (
    PRIORITIES,
    UNFINISHED,
    JobDetails,
    JobInfo,
    JobList,
    JobOutcome,
    JobPreview,
    JobTimes,
    Queue,
    QueueEntry,
    SubmittedJob,
)
from warpcall.jobs.outcomes import main_outcome, outcome_of
from warpcall.jobs.results import CaseDetails, CaseResults, History, HistoryPoint, Measurement
from warpcall_bench.groups.tables import GroupPart, JobGroup
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.measurements import (
    checked_rows,
    measurement,
    measurements,
    series,
    with_reasons,
    word,
)
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.queue import Place
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.jobs.tables import Job as JobRow
from warpcall_bench.jobs.tables import JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.stored_results import result_of
from warpcall_bench.uploads import job_uploads
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment
from warpcall_service.text import printable

PREVIEWED = 20  # cases that a preview names
HIDDEN = "a private problem"  # in place of its name
NO_GPU = "no GPU: warpcall runs plain torch here, so nothing can be concluded about its kernels"
INTERPRETED = (
    "no GPU: Triton interprets the kernels of uploads with the tag interpreted, so their times say "
    "nothing about a GPU"
)
NO_GPU_FOR_PROBLEM = "no GPU: these are times of a CPU, which say nothing about a GPU"
TWIN_EVERY = 4  # rounds: in each such one the sampler times the first implementation twice
SETS = 2  # of inputs, between which rounds alternate
FACTS_THAT_ALWAYS_DIFFER = ("host", "uuid")  # they do not change what is measured


class Measured(NamedTuple):
    """Where and of what a measurement is: JSON of the fingerprint, and two hashes."""

    facts: str | None
    source_sha256: str | None
    problem_sha256: str | None


def submitted(session: Session, row: JobRow, created: bool, devices: Devices) -> SubmittedJob:
    """The answer to a submission: the new job, or the one that was found instead."""
    (fields,) = _fields_of(session, [row], devices)
    return checked(SubmittedJob, {**fields, "reused": not created})


def job(
    session: Session, caller: Caller, job_id: str, devices: Devices, *, any_kind: bool = False
) -> JobDetails:
    """One job with its details.

    Args:
        any_kind: as for `submissions.find`.
    """
    row = submissions.find(session, caller, job_id, any_kind=any_kind)
    known = facts(row, caller) or {}
    (fields,) = _fields_of(session, [row], devices)
    return checked(
        JobDetails,
        {
            **fields,
            "group": "" if caller.jobs is not None else fields["group"],
            "host": known.get("host", ""),
            "request": json.loads(row.request),
            "fingerprint": facts(row, caller),
            "sources": json.loads(row.sources or "{}"),
            "problem_sha256": row.problem_sha256,
            "exit_status": row.exit_status,
        },
    )


def preview(
    session: Session, caller: Caller, request: JobRequest, checked: Checked, private: bool
) -> JobPreview:
    """What a job would cost, for a request whose cases were checked."""
    expected = submissions.estimate(session, request, checked)
    found = None
    if not request.fresh:
        found = submissions.find_answered(session, caller, request, checked, private)
    return JobPreview(
        cases=len(checked["cases"]),
        first_cases=[case["key"] for case in checked["cases"][:PREVIEWED]],
        nominal_s=expected.nominal_s,
        estimated_s=expected.estimated_s,
        device_bytes=max(case["device_bytes"] for case in checked["cases"]),
        environment=checked["environment"],
        reuses=None if found is None else found.id,
    )


def jobs(session: Session, caller: Caller, wanted: Filter, devices: Devices) -> JobList:
    """A page of the jobs that the caller may read, the latest first."""
    found = submissions.listed(session, caller, wanted)
    rows, more = found[: wanted.limit], len(found) > wanted.limit
    return JobList(
        jobs=[checked(JobInfo, one) for one in _fields_of(session, rows, devices)],
        next=rows[-1].id if more else None,
    )


def jobs_of(
    session: Session, caller: Caller, ids: Collection[str], devices: Devices
) -> Mapping[str, JobInfo]:
    """Those of the jobs that the caller may read, by their whole ids."""
    query = sa.select(JobRow).where(JobRow.id.in_(ids), submissions.readable(caller))
    rows = session.scalars(query).all()
    return {one["id"]: checked(JobInfo, one) for one in _fields_of(session, rows, devices)}


def case_keys(session: Session, ids: Sequence[str], most: int) -> Mapping[str, Sequence[str]]:
    """The keys of the first `most` cases of jobs and of the last one, by the ids of the jobs."""
    query = (
        sa.select(JobRow.id, JobCase.key)
        .join(JobCase, JobCase.job_number == JobRow.number)
        .where(JobRow.id.in_(ids))
        .where(sa.or_(JobCase.position < most, JobCase.position == JobRow.cases_total - 1))
        .order_by(JobCase.job_number, JobCase.position)
    )
    found: dict[str, list[str]] = {one: [] for one in ids}
    for one, key in session.execute(query):
        found[one].append(key)
    return found


def whole_queue(session: Session, caller: Caller, devices: Devices) -> Queue:
    """The jobs of all users that run or wait, in order.

    The names of problems that the caller may not read are left out, and the cases of jobs.
    """
    places = queue.places(session, devices)
    hidden = job_uploads.hidden_problems(session, caller)
    rows = queue.unfinished(session)
    readable = [
        row
        for row in rows
        if row.problem_number not in hidden and submissions.may_read(caller, row)
    ]
    first_cases, shown = _first_cases(session, readable), {row.number for row in readable}
    groups = _groups(session, readable)
    entries = []
    for row in rows:
        place = places.get(row.number)
        if place is None:
            continue  # it was submitted between the two queries
        fields = {
            **_fields(row, places, first_cases, groups),
            "position": place.position,
            "starts_in_s": place.starts_in_s,
            "ends_in_s": place.ends_in_s,
        }
        if row.number not in shown:
            fields["name"] = ""
        if row.problem_number in hidden:
            fields["op"] = HIDDEN
        entries.append(checked(QueueEntry, fields))
    entries.sort(key=lambda entry: (entry.position, entry.ends_in_s))
    return Queue(devices=devices.number, entries=entries)


def _fields_of(session: Session, rows: Sequence[JobRow], devices: Devices) -> list[dict[str, Any]]:
    """The fields of `JobInfo` of some jobs."""
    places, first = _places(session, rows, devices), _first_cases(session, rows)
    groups = _groups(session, rows)
    return [_fields(row, places, first, groups) for row in rows]


def _places(session: Session, rows: Any, devices: Devices) -> Mapping[int, Place]:
    """The places of all unfinished jobs; empty, without a query, if none of the rows is unfinished."""
    return queue.places(session, devices) if any(row.state in UNFINISHED for row in rows) else {}


def _first_cases(session: Session, rows: Sequence[JobRow]) -> Mapping[int, str]:
    """The keys of the jobs' first cases, by the numbers of the jobs."""
    numbers = [row.number for row in rows]
    query = sa.select(JobCase.job_number, JobCase.key)
    found = session.execute(query.where(JobCase.job_number.in_(numbers), JobCase.position == 0))
    return {number: key for number, key in found}


def _groups(session: Session, rows: Sequence[JobRow]) -> Mapping[int, str]:
    """The ids of the latest groups of which jobs are parts, by the numbers of the jobs."""
    numbers = [row.number for row in rows if row.gpu is not None]
    query = (
        sa.select(GroupPart.job_number, JobGroup.id)
        .join(JobGroup, JobGroup.number == GroupPart.group_number)
        .where(GroupPart.job_number.in_(numbers))
        .order_by(JobGroup.number)
    )
    return {number: group for number, group in session.execute(query)} if numbers else {}


def _fields(
    row: JobRow,
    places: Mapping[int, Place],
    first_cases: Mapping[int, str],
    groups: Mapping[int, str],
) -> dict[str, Any]:
    place = places.get(row.number)
    has_device = place is None or place.has_device
    return {
        "id": row.id,
        "kind": row.kind,
        "user": row.user_name,
        "op": row.op,
        "implementations": json.loads(row.implementations),
        "precision": row.precision,
        "priority": PRIORITIES[row.priority],
        "tags": json.loads(row.tags),
        "name": row.name or "",
        "outcome": _outcome(row),
        "note": row.note,
        "state": row.state,
        "exit_class": row.exit_class,
        "detail": printable(row.detail),
        "cases_total": row.cases_total,
        "cases_done": row.cases_done,
        "attempts": row.attempts,
        "cancel_requested": row.cancel_ms is not None,
        "created_at": moment(row.created_ms),
        "started_at": None if row.started_ms is None else moment(row.started_ms),
        "finished_at": None if row.finished_ms is None else moment(row.finished_ms),
        "estimated_s": row.estimated_ms / 1e3,
        "took_s": row.took_ms / 1e3,
        "position": place.position if place is not None and row.state == "queued" else None,
        "starts_in_s": None if place is None or not has_device else place.starts_in_s,
        "ends_in_s": None if place is None or not has_device else place.ends_in_s,
        "has_device": has_device,
        "device": row.device,
        "environment": row.environment,
        "private": row.private,
        "node": row.runner or "",
        "host": json.loads(row.fingerprint or "{}").get("host", ""),
        "device_name": row.model or "",
        "times": times(row),
        "first_case": first_cases.get(row.number, ""),
        "gpu": row.gpu or "",
        "group": groups.get(row.number, ""),
    }


def times(row: JobRow) -> JobTimes | None:
    """Where the time of the runs of a job went; None if no run has ended, and of older servers."""
    if row.device_ms is None:
        return None
    return JobTimes(
        device_wait_s=(row.device_wait_ms or 0) / 1e3,
        device_s=row.device_ms / 1e3,
        compile_s=(row.compile_ms or 0) / 1e3,
        setup_s=(row.setup_ms or 0) / 1e3,
    )


def _outcome(row: JobRow) -> JobOutcome | None:
    """What lists show of a job; None if not all of the measured cases were counted, because an older
    server measured some."""
    found = map(outcome_of, json.loads(row.outcomes or "[]"))
    return main_outcome([one for one in found if one.cases == row.cases_done and one.cases])


def history(
    session: Session, caller: Caller, op: str, implementation: str, case: str, limit: int
) -> History:
    """What an implementation took in a case, in the jobs that the caller may read, the latest first."""
    query = (
        sa.select(Row, JobRow.id, JobRow.user_name, JobRow.fingerprint, JobRow.implementations)
        .join(JobRow, JobRow.number == Row.job_number)
        .where(
            Row.series_sha256 == series(op, implementation, case),
            submissions.readable(caller),
        )
        .order_by(Row.job_number.desc())
        .limit(limit)
    )
    found = session.execute(query).all()
    firsts = {row.job_number: json.loads(names)[0] for row, *_, names in found}
    against = _rows_of_firsts(session, op, case, firsts)
    origins = [
        Measured(fingerprint, row.source_sha256, row.problem_sha256)
        for row, _, _, fingerprint, _ in found
    ]
    points = []
    for (row, job_id, user, _, _), now, before in zip(
        found, origins, [*origins[1:], None], strict=False
    ):
        measured = measurement(row, case)
        first = against.get((row.job_number, row.position))
        if first is not None and first.implementation != implementation:
            pair = checked_rows([first, measured], first.implementation)
            measured = pair[1]
        points.append(
            HistoryPoint(
                job=job_id,
                user=user,
                finished_at=moment(row.finished_ms),
                environment=row.environment,
                changed=[] if before is None else changed(before, now),
                measurement=measured,
            )
        )
    return History(op=op, implementation=implementation, case=case, points=points)


def _rows_of_firsts(
    session: Session, op: str, case: str, firsts: Mapping[int, str]
) -> dict[tuple[int, int], Measurement]:
    """The rows of a case that others are compared with, by the number of the job and the position.

    Args:
        firsts: name of the first implementation, by the number of the job.
    """
    wanted = {series(op, name, case) for name in firsts.values()}
    rows = session.scalars(
        sa.select(Row).where(Row.series_sha256.in_(wanted), Row.job_number.in_(firsts))
    )
    return {
        (row.job_number, row.position): measurement(row, case)
        for row in rows
        if row.implementation == firsts[row.job_number]
    }


def changed(before: Measured, now: Measured) -> list[str]:
    """What differs between two measurements of a series: facts of the environment, the source, the
    problem."""
    found = [*differences(json.loads(before.facts or "{}"), json.loads(now.facts or "{}"))]
    for what, hashes in (
        ("source", {before.source_sha256, now.source_sha256}),
        ("problem", {before.problem_sha256, now.problem_sha256}),
    ):
        if len(hashes - {None}) > 1:  # None in old rows, and for ops of the library
            found.append(what)
    return sorted(found)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The facts that differ between two fingerprints: the value in `a`, then the value in `b`."""
    return {
        name: [a.get(name), b.get(name)]
        for name in sorted({*a, *b} - {*FACTS_THAT_ALWAYS_DIFFER})
        if a.get(name) != b.get(name)
    }


def facts(row: JobRow, caller: Caller) -> dict[str, Any] | None:
    """The fingerprint of the environment of a job; guests do not learn the names of machines."""
    if row.fingerprint is None:
        return None
    found: dict[str, Any] = json.loads(row.fingerprint)
    hidden = FACTS_THAT_ALWAYS_DIFFER if caller.jobs is not None else ()
    return {name: value for name, value in found.items() if name not in hidden}


def remarks(row: JobRow) -> list[str]:
    """What a reader should know about all results of a job: which implementations failed or were not
    checked, and whether there was a GPU."""
    detail = [printable(row.detail)] if row.detail and row.state in ("partial", "succeeded") else []
    return [*detail, *device_remarks(row)]


def device_remarks(row: JobRow) -> list[str]:
    """What a reader should know about the device of a job: nothing if it was a GPU."""
    fingerprint = json.loads(row.fingerprint or "{}")
    if fingerprint.get("kind") != "cpu":
        return []
    general = NO_GPU if row.problem_sha256 is None else NO_GPU_FOR_PROBLEM
    has_uploads = any("/" in name for name in (row.op, *json.loads(row.implementations)))
    return [general, INTERPRETED] if has_uploads else [general]


def find_case(session: Session, caller: Caller, job_id: str, position: int) -> CaseDetails:
    """One measured case with its rows and all samples.

    Raises:
        NotFound: there is no such job, it is private to another user, or it has not measured a case
            at this position.
    """
    row = submissions.find(session, caller, job_id)
    case = session.get(JobCase, (row.number, position))
    if case is None or case.result is None:
        raise NotFound(
            f"the job {row.id} has {row.cases_total} cases and has measured {row.cases_done}, "
            f"none of them at position {position}",
            field="position",
        )
    return _case(row, case, measurements(session, row, [position]), samples=True)


def cases(
    session: Session, row: JobRow, rows: Iterable[Measurement], first: int, most: int
) -> list[CaseDetails]:
    """At most so many measured cases, from position `first` on, without their samples.

    Args:
        rows: all rows of the job, from `measurements`.
    """
    found = session.scalars(
        sa.select(JobCase)
        .where(
            JobCase.job_number == row.number,
            JobCase.result.is_not(None),
            JobCase.position >= first,
        )
        .order_by(JobCase.position)
        .limit(most)
    ).all()
    of_case: dict[int, list[Measurement]] = {case.position: [] for case in found}
    for one in rows:
        if one.position in of_case:
            of_case[one.position].append(one)
    return [_case(row, case, of_case[case.position], samples=False) for case in found]


def _case(row: JobRow, case: JobCase, rows: Sequence[Measurement], *, samples: bool) -> CaseDetails:
    fields = case_fields(case, samples=samples)
    sets = input_sets(fields["rounds"])
    rows = with_reasons(rows, {case.position: fields["margin"]}, row.precision)
    about = {"job": row.id, "op": row.op, "measurements": rows, "input_sets": sets}
    return checked(CaseDetails, {**fields, **about})


def case_fields(case: JobCase, *, samples: bool) -> dict[str, Any]:
    """The fields of `CaseResults` of a measured case."""
    assert case.result is not None
    result = result_of(case.result)
    limit = result["limit"]
    return {
        **{field.name: result[field.name] for field in fields(CaseResults) if field.name in result},
        "a_a": _twins(result.get("a_a")),
        "position": case.position,
        "case": case.key,
        "limit_us": None if limit is None else limit["median_us"],
        "finished_at": moment(case.finished_ms or 0),
        "samples_us": {one["name"]: one["samples_us"] for one in result["implementations"]}
        if samples
        else None,
        "readings": result.get("readings") if samples else None,  # older servers stored none
    }


def _twins(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How the first implementation compares with itself."""
    return None if found is None else {**found, "verdict": word(found["verdict"])}


def input_sets(rounds: int) -> list[int]:
    """The set of inputs that each round begins with.

    The sampler changes the set from round to round, and once more after each round with a twin, so
    that rounds with a twin alternate as well (`measuring/_rounds.py`).
    """
    return [(number + number // TWIN_EVERY) % SETS for number in range(rounds)]


def specs(session: Session, row: JobRow) -> Mapping[int, str]:
    """The specs of all cases of a job, as JSON by position."""
    found = session.execute(
        sa.select(JobCase.position, JobCase.spec).where(JobCase.job_number == row.number)
    )
    return {position: spec for position, spec in found}


def first_without_result(session: Session, row: JobRow) -> sa.Row[int, str] | None:
    """The position and the key of the first case that has no result yet."""
    return session.execute(
        sa.select(JobCase.position, JobCase.key)
        .where(JobCase.job_number == row.number, JobCase.result.is_(None))
        .order_by(JobCase.position)
        .limit(1)
    ).one_or_none()


def keys_and_specs(session: Session, job_id: str, key: str, most: int) -> Sequence[tuple[str, str]]:
    """The keys and specs of at most so many cases of a job, of which one may be named by its key."""
    rows = session.execute(
        sa.select(JobCase.key, JobCase.spec)
        .join(JobRow, JobRow.number == JobCase.job_number)
        .where(JobRow.id == job_id)
        .where(JobCase.key == key if key else sa.true())
        .order_by(JobCase.position)
        .limit(most)
    )
    return [(key, spec) for key, spec in rows]
