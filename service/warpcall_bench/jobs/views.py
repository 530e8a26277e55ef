"""Jobs from the database as the types that the API answers with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import (
    PRIORITIES,
    UNFINISHED,
    JobDetails,
    JobInfo,
    JobList,
    JobPreview,
    Queue,
    QueueEntry,
    SubmittedJob,
)
from warpcall_bench.jobs import outcomes, queue, results, submissions
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.queue import Place
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.jobs.tables import Job as JobRow
from warpcall_bench.jobs.tables import JobCase
from warpcall_bench.runs.messages import Checked
from warpcall_bench.uploads import job_uploads
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment
from warpcall_service.text import printable

PREVIEWED = 20  # cases that a preview names
HIDDEN = "a private problem"  # in place of its name


def submitted(session: Session, row: JobRow, created: bool, devices: int) -> SubmittedJob:
    """The answer to a submission: the new job, or the one that was found instead."""
    fields = _fields(row, _places(session, [row], devices), _first_cases(session, [row]))
    return checked(SubmittedJob, {**fields, "reused": not created})


def job(session: Session, caller: Caller, job_id: str, devices: int) -> JobDetails:
    """One job with its details."""
    row = submissions.find(session, caller, job_id)
    return checked(
        JobDetails,
        {
            **_fields(row, _places(session, [row], devices), _first_cases(session, [row])),
            "request": json.loads(row.request),
            "fingerprint": results.facts(row, caller),
            "sources": json.loads(row.sources or "{}"),
            "problem_sha256": row.problem_sha256,
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


def jobs(session: Session, caller: Caller, wanted: Filter, devices: int) -> JobList:
    """A page of the jobs that the caller may read, the latest first."""
    found = submissions.listed(session, caller, wanted)
    rows, more = found[: wanted.limit], len(found) > wanted.limit
    places, first = _places(session, rows, devices), _first_cases(session, rows)
    return JobList(
        jobs=[checked(JobInfo, _fields(row, places, first)) for row in rows],
        next=rows[-1].id if more else None,
    )


def whole_queue(session: Session, caller: Caller, devices: int) -> Queue:
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
    first_cases = _first_cases(session, readable)
    entries = []
    for row in rows:
        place = places.get(row.number)
        if place is None:
            continue  # it was submitted between the two queries
        fields = {**_fields(row, places, first_cases), "position": place.position}
        if row.number not in first_cases:
            fields["name"] = ""
        if row.problem_number in hidden:
            fields["op"] = HIDDEN
        entries.append(checked(QueueEntry, fields))
    entries.sort(key=lambda entry: (entry.position, entry.ends_in_s))
    return Queue(devices=devices, entries=entries)


def _places(session: Session, rows: Any, devices: int) -> Mapping[int, Place]:
    """The places of all unfinished jobs; empty, without a query, if none of the rows is unfinished."""
    return queue.places(session, devices) if any(row.state in UNFINISHED for row in rows) else {}


def _first_cases(session: Session, rows: Sequence[JobRow]) -> Mapping[int, str]:
    """The keys of the jobs' first cases, by the numbers of the jobs."""
    numbers = [row.number for row in rows]
    query = sa.select(JobCase.job_number, JobCase.key)
    found = session.execute(query.where(JobCase.job_number.in_(numbers), JobCase.position == 0))
    return {number: key for number, key in found}


def _fields(
    row: JobRow, places: Mapping[int, Place], first_cases: Mapping[int, str]
) -> dict[str, Any]:
    place = places.get(row.number)
    return {
        "id": row.id,
        "user": row.user_name,
        "op": row.op,
        "implementations": json.loads(row.implementations),
        "precision": row.precision,
        "priority": PRIORITIES[row.priority],
        "tags": json.loads(row.tags),
        "name": row.name or "",
        "outcome": outcomes.outcome_of(row),
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
        "starts_in_s": None if place is None else place.starts_in_s,
        "ends_in_s": None if place is None else place.ends_in_s,
        "device": row.device,
        "environment": row.environment,
        "private": row.private,
        "node": row.runner or "",
        "first_case": first_cases.get(row.number, ""),
    }
