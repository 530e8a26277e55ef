"""Regression checks from stored jobs: is the second implementation slower than the first one?"""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.jobs.results import Results
from warpcall.regressions import JOBS, Regression, first_of, judge, tag_of_repeats
from warpcall_bench.jobs.answers import facts
from warpcall_bench.jobs.measurements import measurements
from warpcall_bench.jobs.submissions import find, readable
from warpcall_bench.jobs.tables import Job, JobTag
from warpcall_service.identity import Caller


def regression(session: Session, caller: Caller, job_id: str, allowed: float) -> Regression:
    """What a job says of its second implementation, together with the jobs that repeat it.

    Args:
        job_id: of the first job of a check, or of one that repeats it.

    Raises:
        NotFound: there is no such job, or it is private to another user.
        InvalidInput: the job has only one implementation.
    """
    job = find(session, caller, job_id)
    first = first_of(json.loads(job.tags))
    if first is not None:
        job = find(session, caller, first)
    names: list[str] = json.loads(job.implementations)
    if len(names) < 2:
        raise InvalidInput(
            f"the job must have two implementations to compare, {job.id} has only {names[0]}",
            field="id",
        )
    base, head = names[:2]
    found = [_results(session, caller, one) for one in (job, *_repeats(session, caller, job))]
    return judge(found, job.op, base, head, allowed)


def _repeats(session: Session, caller: Caller, job: Job) -> list[Job]:
    """The jobs that measured again what `job` left open, the first one first."""
    found = session.scalars(
        sa.select(Job)
        .join(JobTag, JobTag.job_number == Job.number)
        .where(
            JobTag.tag == tag_of_repeats(job.id),
            Job.user_name == job.user_name,
            Job.op == job.op,
            readable(caller),
        )
        .order_by(Job.number)
        .limit(JOBS - 1)
    )
    return [*found]


def _results(session: Session, caller: Caller, job: Job) -> Results:
    """What a job has measured, without how its cases were measured."""
    return Results(
        id=job.id,
        state=job.state,  # type: ignore[arg-type]  # the database holds only states
        environment=job.environment,
        fingerprint=facts(job, caller),
        remarks=[],
        measurements=measurements(session, job),
        cases=[],
    )
