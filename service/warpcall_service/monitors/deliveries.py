"""The calls of monitors' URLs in the database: what is sent, which is due, how each one ended.

A delivery is a row that is added in the transaction that finds its steps, so no step is forgotten.
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

from warpcall.monitors import DeliveryState
from warpcall_service.monitors import views
from warpcall_service.store.monitor_tables import Monitor, MonitorDelivery, MonitorStep
from warpcall_service.store.tables import User
from warpcall_service.store.times import moment, now_ms

PAUSES_S = (10, 60, 300, 1800, 7200, 21_600)  # after each failed attempt but the last
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


def add(session: Session, monitor: Monitor, steps: Sequence[MonitorStep]) -> None:
    """Add the delivery of the steps that one run has shown."""
    delivery_id, now = secrets.token_hex(16), now_ms()
    body = {
        "delivery": delivery_id,
        "monitor": monitor.id,
        "user": monitor.user_name,
        "op": monitor.op,
        "created_at": moment(now),
        "steps": [step.to_dict() for step in views.steps(session, steps)],
    }
    session.add(
        MonitorDelivery(
            id=delivery_id,
            monitor_number=monitor.number,
            body=json.dumps(body, separators=(",", ":")),
            state="waiting",
            attempts=0,
            next_ms=now,
            detail="",
            created_ms=now,
        )
    )


def is_due(session: Session) -> bool:
    """Whether an attempt is due, without claiming it."""
    return session.scalars(_due().limit(1)).first() is not None


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
        .where(
            MonitorDelivery.state == "sending",
            MonitorDelivery.attempts >= MOST_ATTEMPTS,
            MonitorDelivery.next_ms <= now_ms(),
        )
        .values(state="failed", detail="the server was stopped meanwhile", finished_ms=now_ms())
        .execution_options(synchronize_session=False)
    )


def _due() -> sa.Select[MonitorDelivery]:
    disabled = sa.select(User.name).where(User.disabled_at.is_not(None))
    return (
        sa.select(MonitorDelivery)
        .join(Monitor, Monitor.number == MonitorDelivery.monitor_number)
        .where(
            MonitorDelivery.state.in_(("waiting", "sending")),
            MonitorDelivery.next_ms <= now_ms(),
            MonitorDelivery.attempts < MOST_ATTEMPTS,
            Monitor.user_name.not_in(disabled),
        )
    )
