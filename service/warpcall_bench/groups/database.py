"""Groups in the database: submit, find, read and delete them.

Every function takes a session and blocks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Forbidden, InvalidInput, NotFound
from warpcall_bench.groups.models import GroupRequest
from warpcall_bench.groups.tables import GroupPart, JobGroup
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.messages import Checked
from warpcall_service.identity import Caller
from warpcall_service.store import ids
from warpcall_service.store.times import now_ms
from warpcall_service.text import brief

ID = re.compile(r"g[0-9a-f]{3,12}")  # the whole id has 12 digits; ids of jobs have no "g"


class JobPart(NamedTuple):
    """A part of a group, and its job."""

    gpu: str
    job: Job


def submit(
    session: Session,
    caller: Caller,
    request: GroupRequest,
    checked: Sequence[Checked],
    idempotency_key: str | None,
    max_jobs: int,
    private_by_default: bool,
) -> tuple[JobGroup, list[Job], bool]:
    """Queue a job for each model, or find jobs that answer for it.

    Args:
        checked: the request of each part.

    Returns:
        The group, the jobs that are new, and whether the group is new.

    Raises:
        InvalidInput, Busy: as `submissions.submit`. Nothing is queued then.
    """
    queue.lock(session)
    if known := find_repeated(session, caller, request, idempotency_key):
        return known, [], False
    found = [
        submissions.submit(session, caller, part, one, None, max_jobs, private_by_default)
        for part, one in zip(request.parts(), checked, strict=True)
    ]
    new = [job for job, is_new in found if is_new]
    numbers = [job.number for job, _ in found]
    if not new and (same := _with_jobs(session, caller, numbers)):
        return same, [], False
    group = JobGroup(
        id=f"g{secrets.token_hex(6)}",
        user_name=caller.name,
        idempotency_key=idempotency_key,
        request_sha256=request.sha256(),
        created_ms=now_ms(),
    )
    session.add(group)
    session.flush()
    session.add_all(
        GroupPart(group_number=group.number, position=n, job_number=number, gpu=gpu)
        for n, (number, gpu) in enumerate(zip(numbers, request.gpus, strict=True))
    )
    session.flush()
    return group, new, True


def find_repeated(
    session: Session, caller: Caller, request: GroupRequest, idempotency_key: str | None
) -> JobGroup | None:
    """The group that was submitted with this Idempotency-Key before; None if there is none.

    Raises:
        InvalidInput: that group had another request.
    """
    if idempotency_key is None:
        return None
    mine = JobGroup.user_name == caller.name, JobGroup.idempotency_key == idempotency_key
    known = session.scalars(sa.select(JobGroup).where(*mine)).one_or_none()
    if known is not None and known.request_sha256 != request.sha256():
        raise InvalidInput(
            f"Idempotency-Key must be a new one for a new request, {brief(idempotency_key)} came "
            f"with the group {known.id}, which asked for something else",
            field="idempotency-key",
        )
    return known


def find(session: Session, caller: Caller, group_id: str) -> JobGroup:
    """The group whose id is, or begins with, `group_id`, if the caller may read one of its jobs.

    Raises:
        NotFound: there is no such group, or its jobs are private to another user.
        InvalidInput: the ids of several groups begin so.
    """
    readable = (
        sa.select(GroupPart.group_number)
        .join(Job, Job.number == GroupPart.job_number)
        .where(GroupPart.group_number == JobGroup.number, submissions.readable(caller))
    )
    query = sa.select(JobGroup).where(sa.exists(readable))
    found = ids.find(session, query, JobGroup.id, group_id, ID, "groups")
    if found is None:
        raise NotFound(
            f"there is no group {brief(group_id)}, or its jobs are private to another user",
            field="id",
        )
    return found[0]


def find_own(session: Session, caller: Caller, group_id: str) -> JobGroup:
    """The group of an id, if the caller may change it.

    Raises:
        NotFound: as `find`.
        Forbidden: it belongs to another user, and the caller is no administrator.
    """
    group = find(session, caller, group_id)
    if not caller.owns(group.user_name):
        raise Forbidden(
            f"only {group.user_name} and administrators may change the group {group.id}", field="id"
        )
    return group


def parts(session: Session, group: JobGroup) -> list[JobPart]:
    """The parts of a group in their order. Those whose jobs were deleted are left out."""
    rows = session.execute(
        sa.select(GroupPart.gpu, Job)
        .join(Job, Job.number == GroupPart.job_number)
        .where(GroupPart.group_number == group.number)
        .order_by(GroupPart.position)
    )
    return [JobPart(gpu, job) for gpu, job in rows]


def cancel(session: Session, group: JobGroup) -> list[int]:
    """End all jobs of a group; returns their numbers. Jobs that have ended are not changed."""
    found = parts(session, group)
    for part in found:
        submissions.cancel(session, part.job)
    return [part.job.number for part in found]


def delete_of_jobs(session: Session, numbers: Collection[int]) -> None:
    """Let jobs be no parts any more, and delete the groups that have none left."""
    of_jobs = GroupPart.job_number.in_(numbers)
    touched = session.scalars(sa.select(GroupPart.group_number).where(of_jobs).distinct()).all()
    if not touched:
        return
    empty = JobGroup.number.not_in(sa.select(GroupPart.group_number))
    for statement in (
        sa.delete(GroupPart).where(of_jobs),
        sa.delete(JobGroup).where(JobGroup.number.in_(touched), empty),
    ):
        session.execute(statement.execution_options(synchronize_session=False))


def _with_jobs(session: Session, caller: Caller, numbers: Sequence[int]) -> JobGroup | None:
    """The latest group of the caller that has exactly these parts; None if there is none."""
    groups = session.scalars(
        sa.select(JobGroup)
        .join(GroupPart, GroupPart.group_number == JobGroup.number)
        .where(
            JobGroup.user_name == caller.name,
            GroupPart.position == 0,
            GroupPart.job_number == numbers[0],
        )
        .order_by(JobGroup.number.desc())
    )
    for group in groups:
        if [part.job.number for part in parts(session, group)] == [*numbers]:
            return group
    return None
