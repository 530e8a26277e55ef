"""What users do with monitors in the database. Every function takes a session and blocks."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Forbidden, NotFound, TooLarge
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.models import JobRequest, without_version
from warpcall_bench.jobs.tables import Job
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.tables import Monitor, MonitorDelivery, MonitorStep
from warpcall_service.auth.users import lock_user
from warpcall_service.identity import Caller
from warpcall_service.store import ids
from warpcall_service.store.times import now_ms
from warpcall_service.text import brief

ID = re.compile(r"[0-9a-f]{4,12}")  # the whole id has 12 digits
QUOTA = "user_max_monitors"
LISTED = 500  # monitors of a list
MAX_TAGS = 16  # of a job


def add(
    session: Session,
    caller: Caller,
    request: MonitorRequest,
    *,
    private: bool,
    most: int,
    token: str = "",
) -> Monitor:
    """Add a monitor, whose first run is due at once.

    Args:
        token: if it is not empty, a monitor that the same user has added with the same token and the
            same request is returned, and none is added.

    Raises:
        TooLarge: the user has `most` monitors.
    """
    monitor_id = secrets.token_hex(6)  # as `ID` has it
    if token:
        sent = json.dumps([caller.name, token, request.model_dump(mode="json")])
        monitor_id = hashlib.sha256(sent.encode()).hexdigest()[:12]
        queue.lock(session)  # the same form may come twice at once
        known = session.scalars(sa.select(Monitor).where(Monitor.id == monitor_id)).one_or_none()
        if known is not None and known.user_name == caller.name:
            return known
    lock_user(session, caller.name)
    number = session.scalars(
        sa.select(sa.func.count(Monitor.number)).where(Monitor.user_name == caller.name)
    ).one()
    if number >= most:
        raise TooLarge(
            f"{caller.name} has {number} monitors, at most {most} are allowed by the quota {QUOTA}; "
            "remove some"
        )
    now = now_ms()
    monitor = Monitor(
        id=monitor_id,
        user_name=caller.name,
        op=without_version(request.job.op),
        request=json.dumps(request.job.model_dump(mode="json", exclude_unset=True)),
        private=private,
        every_s=request.every_s,
        least=request.least,
        notify=request.notify,
        secret=None if request.notify is None else secrets.token_hex(32),
        paused=False,
        detail="",
        created_ms=now,
        next_ms=now,
        lease_ms=0,
        fence=0,
        runs=0,
    )
    session.add(monitor)
    session.flush()
    return monitor


def count_by_user(session: Session, user: str | None) -> dict[str, int]:
    """How many monitors each user has, or only one user."""
    query = sa.select(Monitor.user_name, sa.func.count())
    if user is not None:
        query = query.where(Monitor.user_name == user)
    return {name: n for name, n in session.execute(query.group_by(Monitor.user_name))}


def job_request(monitor: Monitor) -> JobRequest:
    """The job that a monitor repeats. It is always measured, and found by the tag of its monitor."""
    found = JobRequest.model_validate_json(monitor.request)
    tags = [*found.tags[: MAX_TAGS - 1], tag_of(monitor.id)]
    return found.model_copy(update={"fresh": True, "priority": "low", "tags": tags})


def tag_of(monitor_id: str) -> str:
    """The tag of a monitor's jobs."""
    return f"monitor-{monitor_id}"


def readable(caller: Caller) -> sa.ColumnElement[bool]:
    """Which monitors the caller may read: all that are not private, their own, administrators all.

    Guests, who came with a share link, read none.
    """
    if caller.jobs is not None:
        return sa.false()
    if caller.may("admin"):
        return sa.true()
    return sa.or_(Monitor.private.is_(False), Monitor.user_name == caller.name)


def find(session: Session, caller: Caller, monitor_id: str) -> Monitor:
    """The monitor whose id is, or begins with, `monitor_id`, if the caller may read it.

    Raises:
        NotFound: there is no such monitor, or it is private to another user.
        InvalidInput: the ids of several monitors that the caller may read begin so.
    """
    query = sa.select(Monitor).where(readable(caller))
    found = ids.find(session, query, Monitor.id, monitor_id, ID, "monitors")
    if found is None:
        raise NotFound(
            f"there is no monitor {brief(monitor_id)}, or it is private to another user",
            field="id",
        )
    return found[0]


def find_own(session: Session, caller: Caller, monitor_id: str) -> Monitor:
    """The monitor of an id, if the caller may change it.

    Raises:
        NotFound: as `find`.
        Forbidden: it belongs to another user, and the caller is no administrator.
    """
    monitor = find(session, caller, monitor_id)
    if not caller.owns(monitor.user_name):
        raise Forbidden(
            f"only {monitor.user_name} and administrators may change the monitor {monitor.id}",
            field="id",
        )
    return monitor


def listed(session: Session, caller: Caller, user: str | None) -> Sequence[Monitor]:
    """The monitors that the caller may read, the latest first, of one user if it is given."""
    query = sa.select(Monitor).where(readable(caller))
    if user is not None:
        query = query.where(Monitor.user_name == user)
    return session.scalars(query.order_by(Monitor.number.desc()).limit(LISTED)).all()


def set_paused(session: Session, caller: Caller, monitor_id: str, *, paused: bool) -> Monitor:
    """Pause a monitor, or resume it: its next run is due at once. The operation is idempotent.

    Raises:
        NotFound, Forbidden: as `find_own`.
    """
    monitor = find_own(session, caller, monitor_id)
    if monitor.paused and not paused:
        monitor.next_ms = now_ms()
    monitor.paused = paused
    if paused:
        monitor.fence += 1  # a run that a server has claimed is not submitted any more
        monitor.lease_ms = 0
    return monitor


def remove(session: Session, caller: Caller, monitor_id: str) -> int | None:
    """Remove a monitor. Its jobs stay, but for the one that waits or runs, which is cancelled.

    Returns:
        The number of the job that was cancelled; None if there was none.

    Raises:
        NotFound, Forbidden: as `find_own`.
    """
    monitor = find_own(session, caller, monitor_id)
    job = None if monitor.job_number is None else session.get(Job, monitor.job_number)
    if job is not None:
        submissions.cancel(session, job)
    for table in (MonitorStep, MonitorDelivery):
        session.execute(sa.delete(table).where(table.monitor_number == monitor.number))
    session.delete(monitor)
    return None if job is None else job.number
