"""Jobs in the database, as users see them: submitted, found again, listed, cancelled.

What runs them is in `queue.py`. Everything here takes a session, and blocks.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Busy, InvalidInput, NotFound
from warpcall.jobs import PRIORITIES, UNFINISHED
from warpcall_service.identity import Caller
from warpcall_service.jobs import lifecycle, queue
from warpcall_service.jobs.events import append_event, now_ms
from warpcall_service.jobs.models import JobRequest
from warpcall_service.runs.messages import Checked
from warpcall_service.store.tables import Job, JobCase, JobTag
from warpcall_service.text import brief

START_S = 6.0  # what a job takes beside its samples: a process, torch, a device
CASE_S = 0.5  # and each case: inputs, the check of the results
ID = re.compile(r"[0-9a-f]{12}")
PACE_JOBS = 20  # finished ones whose mean says how much longer than nominal a job takes
SLOWEST_PACE, FASTEST_PACE = 20.0, 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a job is thought to take: by its preset, and by what such jobs took lately."""

    nominal_s: float
    estimated_s: float


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs to list; None is any. `before` is the id of a job, older ones are listed."""

    user: str | None = None
    state: str | None = None
    op: str | None = None
    tag: str | None = None
    before: str | None = None
    limit: int = 50


def submit(
    session: Session,
    caller: Caller,
    request: JobRequest,
    checked: Checked,
    idempotency_key: str | None,
    max_jobs: int,
) -> tuple[Job, bool]:
    """Queue a job, or find the one that makes this unnecessary; whether it is a new one.

    Raises:
        InvalidInput: the Idempotency-Key came before, with another request.
        Busy: the user has `max_jobs` that are not finished.
    """
    clock_us = queue.lock(session)
    if known := find_repeated(session, caller, request, idempotency_key):
        return known, False
    question = _question(request, checked)
    if not request.fresh and (found := _find_answered(session, caller, question, checked)):
        return found, False
    waiting = session.scalars(
        sa.select(sa.func.count(Job.number)).where(
            Job.user_name == caller.name, Job.state.in_(UNFINISHED)
        )
    ).one()
    if waiting >= max_jobs:
        raise Busy(
            f"{caller.name} has {waiting} jobs that are not finished, at most {max_jobs} are allowed",
            retry_after_s=60,
        )
    expected = estimate(session, request, checked)
    job = Job(
        id=secrets.token_hex(6),  # as `ID` has it
        user_name=caller.name,
        idempotency_key=idempotency_key,
        request=_text(request.model_dump(mode="json", exclude_unset=True)),
        request_sha256=_sha256(request),
        question_sha256=question,
        op=request.op,
        implementations=_text(request.implementations),
        precision=request.precision,
        priority=PRIORITIES.index(request.priority),
        tags=_text(request.tags),
        note=request.note,
        state="queued",
        detail="",
        cases_total=len(checked["cases"]),
        cases_done=0,
        attempts=0,
        created_ms=now_ms(),
        since_us=clock_us,
        cost_us=round(expected.estimated_s * 1e6),
        nominal_ms=round(expected.nominal_s * 1e3),
        estimated_ms=round(expected.estimated_s * 1e3),
        took_ms=0,
    )
    session.add(job)
    session.flush()
    session.add_all(JobTag(job_number=job.number, tag=tag) for tag in request.tags)
    session.execute(
        sa.insert(JobCase),
        [
            {
                "job_number": job.number,
                "position": position,
                "spec": _text(case["spec"]),
                "key": case["key"],
            }
            for position, case in enumerate(checked["cases"])
        ],
    )
    append_event(session, job, "state", {"state": "queued"})
    return job, True


def find_repeated(
    session: Session, caller: Caller, request: JobRequest, idempotency_key: str | None
) -> Job | None:
    """The job that was submitted under this Idempotency-Key before.

    Raises:
        InvalidInput: it was another one.
    """
    if idempotency_key is None:
        return None
    known = session.scalars(
        sa.select(Job).where(Job.user_name == caller.name, Job.idempotency_key == idempotency_key)
    ).one_or_none()
    if known is not None and known.request_sha256 != _sha256(request):
        raise InvalidInput(
            f"Idempotency-Key must be a new one for a new request, {brief(idempotency_key)} came "
            f"with the job {known.id}, which asked for something else",
            field="idempotency-key",
        )
    return known


def estimate(session: Session, request: JobRequest, checked: Checked) -> Estimate:
    """What a job like this would take, going by the last ones of its op and precision."""
    nominal = nominal_s(request, checked)
    last = (
        sa.select(Job.took_ms, Job.nominal_ms)
        .where(Job.op == request.op, Job.precision == request.precision, Job.state == "succeeded")
        .order_by(Job.number.desc())
        .limit(PACE_JOBS)
        .subquery()
    )
    took_ms, nominal_ms = session.execute(
        sa.select(sa.func.sum(last.c.took_ms), sa.func.sum(last.c.nominal_ms))
    ).one()
    pace = float(took_ms) / float(nominal_ms) if took_ms and nominal_ms else 1.0
    return Estimate(nominal, nominal * min(max(pace, FASTEST_PACE), SLOWEST_PACE))


def nominal_s(request: JobRequest, checked: Checked) -> float:
    """What a job takes if each of its measurements uses the time that it may."""
    per_case_s = len(request.implementations) * checked["implementation_s"] + CASE_S
    return START_S + len(checked["cases"]) * per_case_s


def find_answered(
    session: Session, caller: Caller, request: JobRequest, checked: Checked
) -> Job | None:
    """A finished job of the caller that measured the same in the same environment."""
    return _find_answered(session, caller, _question(request, checked), checked)


def find(session: Session, caller: Caller, job_id: str) -> Job:
    """A job that the caller may see: his own, and for an administrator everyone's.

    Raises:
        NotFound: none such, as far as he may know.
    """
    query = sa.select(Job).where(Job.id == job_id)
    job = session.scalars(query).one_or_none() if ID.fullmatch(job_id) else None
    if job is None or not (caller.may("admin") or job.user_name == caller.name):
        raise NotFound(f"there is no job {brief(job_id)}, or it is not yours", field="id")
    return job


def listed(session: Session, caller: Caller, wanted: Filter) -> Sequence[Job]:
    """Jobs that the caller may see, the latest first; one more than `limit`, if there are more.

    Raises:
        NotFound: there is no job `before`.
    """
    query = sa.select(Job).order_by(Job.number.desc()).limit(wanted.limit + 1)
    user = wanted.user if caller.may("admin") else caller.name
    if user is not None:
        query = query.where(Job.user_name == user)
    if user != wanted.user and wanted.user is not None:
        query = query.where(sa.false())  # somebody else's
    if wanted.state is not None:
        query = query.where(Job.state == wanted.state)
    if wanted.op is not None:
        query = query.where(Job.op == wanted.op)
    if wanted.tag is not None:
        query = query.join(JobTag, JobTag.job_number == Job.number).where(JobTag.tag == wanted.tag)
    if wanted.before is not None:
        query = query.where(Job.number < find(session, caller, wanted.before).number)
    return session.scalars(query).all()


def cancel(session: Session, job: Job) -> None:
    """End a job: at once if it waits, soon if it runs; one that has ended stays as it is."""
    queue.lock(session)
    session.refresh(job)
    if job.state not in UNFINISHED:
        return
    job.cancel_ms = job.cancel_ms or now_ms()
    if job.state == "queued":
        lifecycle.end_job(session, job, "cancelled", "cancelled", "cancelled before it began")


def _find_answered(session: Session, caller: Caller, question: str, checked: Checked) -> Job | None:
    return session.scalars(
        sa.select(Job)
        .where(
            Job.user_name == caller.name,
            Job.question_sha256 == question,
            Job.state == "succeeded",
            Job.environment == checked["environment"],
        )
        .order_by(Job.number.desc())
        .limit(1)
    ).one_or_none()


def _question(request: JobRequest, checked: Checked) -> str:
    """Hash of what is measured: names and cases, but not in whose name and how urgently."""
    asked = [
        request.op,
        request.implementations,
        request.precision,
        [case["key"] for case in checked["cases"]],
        checked["kernels_sha256"],
    ]
    return hashlib.sha256(_text(asked).encode()).hexdigest()


def _sha256(request: JobRequest) -> str:
    return hashlib.sha256(_text(request.model_dump(mode="json")).encode()).hexdigest()


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
