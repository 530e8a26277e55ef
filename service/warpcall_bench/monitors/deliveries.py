"""The calls of monitors' URLs in the database: what is sent, which is due, how each one ended.

A delivery is a row that is added in the transaction that finds what it is about, so nothing is
forgotten.
An attempt is claimed before it begins, and its end is written only while it is the latest one. If a
server is killed during an attempt, another one begins after its lease, with the same id: a receiver
that remembers ids handles each delivery once. Every function takes a session and blocks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.monitors import DeliveryState, MonitorEvent, MonitorNotification
from warpcall_bench.monitors import views
from warpcall_bench.monitors.tables import Monitor, MonitorDelivery, MonitorStep
from warpcall_service.auth.tables import User
from warpcall_service.formats.payloads import checked
from warpcall_service.store.times import moment, now_ms

PAUSES_S = (10, 60, 600, 7200)  # after each failed attempt but the last
MOST_ATTEMPTS = len(PAUSES_S) + 1
LEASE_MS = 60_000  # of an attempt, which itself takes less
GONE = 410  # a receiver that answers so wants no further attempts
MAX_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to make one attempt of a delivery."""

    number: int
    id: str
    attempts: int
    monitor_id: str
    url: str
    secret: str
    body: bytes


def add(
    session: Session,
    monitor: Monitor,
    event: MonitorEvent,
    job_id: str | None,
    *,
    steps: Sequence[MonitorStep] = (),
) -> None:
    """Add a delivery about a run, if the monitor has a URL.

    Args:
        job_id: the job of the run; None if it could not be submitted.
        steps: what the run has shown.
    """
    if monitor.notify is None:
        return
    delivery_id, now = secrets.token_hex(16), now_ms()
    body = checked(
        MonitorNotification,
        {
            "delivery": delivery_id,
            "event": event,
            "monitor": monitor.id,
            "user": monitor.user_name,
            "op": monitor.op,
            "created_at": moment(now),
            "job": job_id,
            "detail": monitor.detail if event == "failing" else "",
            "steps": views.steps(session, steps),
        },
    )
    session.add(
        MonitorDelivery(
            id=delivery_id,
            monitor_number=monitor.number,
            event=event,
            body=json.dumps(body.to_dict(), separators=(",", ":")),
            state="waiting",
            attempts=0,
            next_ms=now,
            detail="",
            created_ms=now,
        )
    )


def claim(session: Session) -> Attempt | None:
    """Claim an attempt that is due; None if none is.

    Nothing is sent for users who are disabled.
    """
    query = _due().order_by(MonitorDelivery.next_ms).limit(1)
    row = session.scalars(query.with_for_update(skip_locked=True, of=MonitorDelivery)).one_or_none()
    if row is None:
        return None
    monitor = session.get_one(Monitor, row.monitor_number)
    row.attempts += 1
    row.state = "sending"
    row.next_ms = now_ms() + LEASE_MS
    return Attempt(
        row.number,
        row.id,
        row.attempts,
        monitor.id,
        monitor.notify or "",
        monitor.secret or "",
        row.body.encode(),
    )


def finish(
    session: Session, attempt: Attempt, status: int | None, detail: str
) -> DeliveryState | None:
    """Write how an attempt ended, and when the next one is due; None if it is not the latest one.

    Args:
        status: of the answer; None if there was none.
        detail: why the attempt failed; empty if it did not.
    """
    query = sa.select(MonitorDelivery).where(
        MonitorDelivery.number == attempt.number,
        MonitorDelivery.attempts == attempt.attempts,
        MonitorDelivery.state == "sending",
    )
    row = session.scalars(query.with_for_update()).one_or_none()
    if row is None:
        return None
    now = now_ms()
    row.status, row.detail = status, detail[:MAX_DETAIL]
    state: DeliveryState = "waiting"
    if not detail:
        state = "delivered"
    elif row.attempts >= MOST_ATTEMPTS or status == GONE:
        state = "failed"
    else:
        row.next_ms = now + 1000 * PAUSES_S[row.attempts - 1]
    row.state = state
    row.finished_ms = None if state == "waiting" else now
    return state


def give_up(session: Session) -> None:
    """End the deliveries whose last attempt was lost with its server."""
    session.execute(
        sa.update(MonitorDelivery)
        .where(_lost())
        .values(state="failed", detail="the server was stopped meanwhile", finished_ms=now_ms())
        .execution_options(synchronize_session=False)
    )


def unfinished() -> sa.Select[MonitorDelivery]:
    """Deliveries of which an attempt is due, or whose last one was lost with its server."""
    return _of_enabled_users().where(sa.or_(_next_attempt(), _lost()))


def _due() -> sa.Select[MonitorDelivery]:
    return _of_enabled_users().where(_next_attempt())


def _next_attempt() -> sa.ColumnElement[bool]:
    return sa.and_(
        MonitorDelivery.state.in_(("waiting", "sending")),
        MonitorDelivery.next_ms <= now_ms(),
        MonitorDelivery.attempts < MOST_ATTEMPTS,
    )


def _lost() -> sa.ColumnElement[bool]:
    return sa.and_(
        MonitorDelivery.state == "sending",
        MonitorDelivery.attempts >= MOST_ATTEMPTS,
        MonitorDelivery.next_ms <= now_ms(),
    )


def _of_enabled_users() -> sa.Select[MonitorDelivery]:
    disabled = sa.select(User.name).where(User.disabled_at.is_not(None))
    return (
        sa.select(MonitorDelivery)
        .join(Monitor, Monitor.number == MonitorDelivery.monitor_number)
        .where(Monitor.user_name.not_in(disabled))
    )
