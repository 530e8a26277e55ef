"""Deliveries in the database: an attempt is claimed by one server, and only the latest one counts."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.service.monitors.lab import HOUR_S, JOB, at_the_same_time
from warpcall_bench.monitors import database, deliveries
from warpcall_bench.monitors.deliveries import MOST_ATTEMPTS, PAUSES_S, Attempt
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.tables import MonitorDelivery
from warpcall_bench.monitors.work import find_work
from warpcall_service.auth import users
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store
from warpcall_service.store.times import now_ms

URL = "https://example.org/hook"


@pytest.fixture
def waiting(store: Store) -> Store:
    """A database with one delivery that waits."""
    request = MonitorRequest.model_validate({"job": JOB, "every_s": HOUR_S, "notify": URL})
    with store.write() as session:
        users.add_user(session, "alice")
        caller = Caller("alice", "bench")
        monitor = database.add(session, caller, request, private=False, most=1)
        deliveries.add(session, monitor, "recovered", None)
    return store


def claim(store: Store) -> Attempt | None:
    with store.write() as session:
        return deliveries.claim(session)


def finish(store: Store, attempt: Attempt, status: int | None, detail: str = "") -> str | None:
    with store.write() as session:
        return deliveries.finish(session, attempt, status, detail)


def row(store: Store, **change: int) -> MonitorDelivery:
    """The delivery, after a change of its columns."""
    with store.write() as session:
        found = session.scalars(sa.select(MonitorDelivery)).one()
        for name, value in change.items():
            setattr(found, name, value)
        session.flush()
        session.refresh(found)
        session.expunge(found)
        return found


def test_servers_that_look_at_the_same_time_make_one_attempt(waiting: Store) -> None:
    found = list[Attempt | None]()

    def serve() -> None:
        found.append(claim(waiting))

    at_the_same_time(4, serve)

    (made,) = [one for one in found if one is not None]
    assert (made.attempts, made.url) == (1, URL)
    assert claim(waiting) is None, "it has its lease"


def test_an_attempt_that_was_given_up_does_not_write_its_end(waiting: Store) -> None:
    lost = claim(waiting)
    assert lost is not None
    row(waiting, next_ms=0)
    again = claim(waiting)
    assert again is not None

    assert (lost.id, again.attempts) == (again.id, 2)
    assert finish(waiting, lost, 500, "late") is None
    assert finish(waiting, again, 204) == "delivered"
    assert finish(waiting, lost, 500, "late") is None
    assert row(waiting).state == "delivered"
    assert claim(waiting) is None


def test_the_pauses_between_attempts_grow_and_the_last_one_ends_it(waiting: Store) -> None:
    for number, pause_s in enumerate(PAUSES_S, 1):
        attempt = claim(waiting)
        assert attempt is not None
        assert attempt.attempts == number
        before = now_ms()
        assert finish(waiting, attempt, 500, "no") == "waiting"
        assert row(waiting).next_ms >= before + 1000 * pause_s
        row(waiting, next_ms=0)
    last = claim(waiting)
    assert last is not None

    assert finish(waiting, last, None, "no") == "failed"
    row(waiting, next_ms=0)
    assert claim(waiting) is None


def test_a_last_attempt_that_was_lost_with_its_server_ends_the_delivery(waiting: Store) -> None:
    row(waiting, attempts=MOST_ATTEMPTS - 1)
    assert claim(waiting) is not None
    with waiting.read() as session:
        early = find_work(session).delivery
    row(waiting, next_ms=0)

    with waiting.write() as session:
        found = find_work(session).delivery
        deliveries.give_up(session)
        later = find_work(session).delivery

    assert (early, found, later) == (False, True, False)
    assert row(waiting).state == "failed"
    assert claim(waiting) is None


def test_nothing_is_claimed_for_a_disabled_user(waiting: Store) -> None:
    with waiting.write() as session:
        users.disable_user(session, "alice")
    assert claim(waiting) is None
    with waiting.write() as session:
        assert not find_work(session).delivery
        users.disable_user(session, "alice", disabled=False)

    assert claim(waiting) is not None
