"""Runs that fail: noted once when they begin to, and once when they work again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service.job_rows import checked
from tests.service.monitors.lab import HOUR_S, JOB
from tests.service.stored import implementation, result
from warpcall_bench.jobs import lifecycle, submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.monitors import database, outcomes, runs, views
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.tables import Monitor, MonitorDelivery
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

ALICE = Caller("alice", "bench")
URL = "https://example.org/hook"


def add(store: Store, notify: str | None = URL) -> None:
    request = MonitorRequest.model_validate({"job": JOB, "every_s": HOUR_S, "notify": notify})
    with store.write() as session:
        database.add(session, ALICE, request, private=False, most=1)


def end_run(store: Store, state: Any = "succeeded", detail: str = "", **statuses: str) -> str:
    """A run of the monitor that has ended; the id of its job.

    Args:
        statuses: of the implementations in the only case; by default "ok" for warpcall.
    """
    with store.write() as session:
        monitor = session.scalars(sa.select(Monitor)).one()
        job, _ = submissions.submit(
            session,
            ALICE,
            database.job_request(monitor),
            checked(),
            None,
            0,
            monitor=monitor.id,
        )
        session.flush()
        job.environment, job.fingerprint = "a machine", "{}"
        measured = [
            {**implementation(name, [100.0]), "status": status}
            for name, status in (statuses or {"warpcall": "ok"}).items()
        ]
        lifecycle.save_case(session, job, 0, result(1, 0, implementations=measured))
        lifecycle.end_job(session, job, state, "ok" if state == "succeeded" else "error", detail)
        monitor.job_number = job.number
        outcomes.note_end(session, monitor)
        assert monitor.job_number is None
        return job.id


def refuse_run(store: Store, why: str) -> None:
    """A run whose job is refused."""
    with store.write() as session:
        session.scalars(sa.select(Monitor)).one().next_ms = 0
        session.flush()
        due = runs.claim(session)
        assert due is not None
        runs.put_off(session, due, why)


def refuse_for_now(store: Store, why: str = "the sandbox is being checked") -> None:
    """A due run whose job the server cannot take at present."""
    with store.write() as session:
        due = runs.claim(session)
        assert due is not None
        runs.retry_later(session, due, why)


def submit_due(store: Store) -> None:
    with store.write() as session:
        due = runs.claim(session)
        assert due is not None
        number = runs.submit(session, due, checked(), False)
        lifecycle.end_job(session, session.get_one(Job, number), "succeeded", "ok", "")
        session.get_one(Monitor, due.monitor).job_number = None


def is_due(store: Store) -> bool:
    with store.read() as session:
        return session.scalars(runs.due()).first() is not None


def let_pass(store: Store, seconds: float) -> None:
    """Move the times of the monitor into the past, as if so much time had passed."""
    with store.write() as session:
        monitor = session.scalars(sa.select(Monitor)).one()
        monitor.next_ms -= int(1000 * seconds)
        monitor.lease_ms -= int(1000 * seconds) if monitor.lease_ms else 0


def detail(store: Store) -> str:
    """Why the monitor fails; empty if it does not."""
    with store.read() as session:
        (found,) = views.monitors(session, ALICE, None).monitors
    assert bool(found.detail) == (found.failing_since is not None)
    return found.detail


def sent(store: Store) -> list[dict[str, Any]]:
    """The bodies of all deliveries."""
    with store.read() as session:
        rows = session.scalars(sa.select(MonitorDelivery).order_by(MonitorDelivery.number)).all()
        found = [json.loads(row.body) for row in rows]
        assert [one["event"] for one in found] == [row.event for row in rows]
    return found


def events(store: Store) -> list[str]:
    return [one["event"] for one in sent(store)]


def test_a_url_is_called_once_when_runs_begin_to_fail_and_once_when_they_work_again(
    store: Store,
) -> None:
    add(store)
    end_run(store)
    assert (events(store), detail(store)) == ([], "")
    first = end_run(store, "failed", "no implementation could be measured in any case")
    end_run(store, "timed_out", "it took longer than 60 s")
    assert events(store) == ["failing"]
    assert detail(store) == "the job took too long: it took longer than 60 s"
    works = end_run(store)
    end_run(store)
    assert detail(store) == ""

    failing, recovered = sent(store)

    assert (failing["job"], recovered["job"]) == (first, works)
    assert failing["detail"] == ("the job failed: no implementation could be measured in any case")
    assert (recovered["event"], recovered["detail"]) == ("recovered", "")
    assert failing["steps"] == recovered["steps"] == []
    assert failing["delivery"] != recovered["delivery"]
    end_run(store, "failed", "again")
    assert events(store) == ["failing", "recovered", "failing"]


def test_a_job_that_is_refused_is_a_run_that_fails(store: Store) -> None:
    add(store)
    refuse_run(store, "there is no implementation ann/gone")
    refuse_run(store, "there is no implementation ann/gone")

    (failing,) = sent(store)

    assert (failing["event"], failing["job"]) == ("failing", None)
    assert failing["detail"] == "the job was refused: there is no implementation ann/gone"
    assert detail(store) == failing["detail"]


def test_a_run_that_the_server_cannot_take_now_is_due_again_soon_and_has_not_failed(
    store: Store,
) -> None:
    add(store)
    for _ in range(HOUR_S // 60 - 10):
        refuse_for_now(store)
        assert not is_due(store)
        let_pass(store, 60.1)
        assert is_due(store), "it was lost"
    refuse_for_now(store)

    assert (events(store), detail(store)) == ([], "")
    let_pass(store, 60.1)
    submit_due(store)
    let_pass(store, 60)
    assert not is_due(store), "the next run came too early"
    let_pass(store, HOUR_S)
    assert is_due(store)


def test_a_run_that_the_server_cannot_take_for_a_whole_period_has_failed(store: Store) -> None:
    add(store)
    refuse_for_now(store)
    let_pass(store, 60.1)
    refuse_for_now(store)
    let_pass(store, HOUR_S - 60)
    refuse_for_now(store, "the queue is full")
    first = detail(store)
    let_pass(store, 60.1)
    refuse_for_now(store, "the device is lost")
    assert detail(store) == first == "the job was refused: the queue is full"
    let_pass(store, HOUR_S - 60)
    refuse_for_now(store, "the device is lost")

    assert detail(store) == "the job was refused: the device is lost"
    assert events(store) == ["failing"]
    end_run(store)
    assert (events(store), detail(store)) == (["failing", "recovered"], "")


@pytest.mark.parametrize("was", ["not refused", "refused", "claimed"])
def test_a_time_without_servers_does_not_count_as_refused(store: Store, was: str) -> None:
    add(store)
    if was == "refused":
        refuse_for_now(store)
    elif was == "claimed":
        with store.write() as session:
            assert runs.claim(session) is not None
    let_pass(store, 3 * HOUR_S)

    refuse_for_now(store)

    assert (events(store), detail(store)) == ([], "")
    let_pass(store, 60.1)
    assert is_due(store)


def test_a_run_is_tried_again_within_a_period_that_is_shorter_than_the_pause(store: Store) -> None:
    add(store)
    with store.write() as session:
        session.scalars(sa.select(Monitor)).one().every_s = 30
    refuse_for_now(store)
    let_pass(store, 10)
    assert not is_due(store)
    let_pass(store, 20.1)
    assert is_due(store)
    let_pass(store, 80)  # a server may come late

    refuse_for_now(store)

    assert events(store) == ["failing"]


@pytest.mark.parametrize("state", ["partial", "succeeded"])  # as servers of before wrote it
def test_an_implementation_without_a_time_is_a_run_that_fails(store: Store, state: str) -> None:
    add(store)
    end_run(store, state, warpcall="ok", torch="wrong_result", ann="oom")

    assert events(store) == ["failing"]
    assert detail(store) == "ann has no time in case 0: oom, and 1 more"


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_a_user_has_cancelled_says_nothing(store: Store, fails: bool) -> None:
    add(store)
    if fails:
        end_run(store, "failed", "why")
    before = (events(store), detail(store))

    end_run(store, "cancelled", "cancelled while it ran")

    assert (events(store), detail(store)) == before


def test_a_monitor_without_a_url_shows_why_and_calls_nobody(store: Store) -> None:
    add(store, notify=None)
    end_run(store, "failed", "why")

    assert sent(store) == []
    assert detail(store) == "the job failed: why"
