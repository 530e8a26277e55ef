"""For which jobs of others a running job waits, by the queue in the database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.job_rows import DEVICE, MANY, RUNNER, claim, finish, submit
from warpcall_bench.jobs import lifecycle, queue
from warpcall_bench.jobs.queue import GivesWay
from warpcall_bench.jobs.tables import Job
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow
ROOM_BYTES = 64


def of_running(store: Store, job: Job, room_bytes: int = ROOM_BYTES) -> GivesWay:
    with store.read() as session:
        end_us = queue.end_us(session, job.user_name)
    return GivesWay(job.user_name, job.priority, end_us, room_bytes)


def running(store: Store, user: str = "alice", **fields: Any) -> GivesWay:
    """A job of eight implementations that has been started, the only one."""
    submit(store, user, implementations=[f"i{n}" for n in range(8)], **fields)
    job = claim(store)
    assert job is not None
    assert job.user_name == user
    return of_running(store, job)


def next_before(store: Store, other: GivesWay, user_running: int = MANY) -> Job | None:
    """The job that is claimed to run before `other` goes on."""
    with store.read() as session:
        comes = queue.comes_before(session, DEVICE, lambda user: user_running, None, other)
    with store.write() as session:
        job = queue.claim(session, RUNNER, DEVICE, lambda user: user_running, running_there=other)
        if job is not None:
            session.flush()
            session.refresh(job)
            session.expunge(job)
    assert comes is (job is not None)
    return job


def test_a_job_waits_for_the_short_job_of_another_user_and_for_none_of_its_own(
    store: Store,
) -> None:
    other = running(store)
    submit(store, "alice")
    before = next_before(store, other)
    submit(store, "bob")

    found = next_before(store, other)

    assert before is None
    assert found is not None
    assert (found.user_name, found.state, found.attempts) == ("bob", "preparing", 1)
    assert next_before(store, other) is None


@pytest.mark.parametrize(
    ("of_running_job", "of_waiting_job", "passes"),
    [
        ("normal", "normal", True),
        ("low", "normal", True),
        ("normal", "low", False),
        ("high", "normal", False),
    ],
)
def test_priorities_come_first(
    of_running_job: str, of_waiting_job: str, passes: bool, store: Store
) -> None:
    other = running(store, priority=of_running_job)
    submit(store, "bob", priority=of_waiting_job)

    assert (next_before(store, other) is not None) is passes


def test_a_job_waits_for_no_long_one_and_for_none_that_needs_too_much_memory(store: Store) -> None:
    other = running(store)
    submit(store, "bob", cases=100)
    long = next_before(store, other)
    submit(store, "cat")
    without_room = next_before(
        store, GivesWay(other.user, other.priority, other.end_us, ROOM_BYTES // 64)
    )
    with_room = next_before(store, other)

    assert (long, without_room) == (None, None)
    assert with_room is not None
    assert with_room.user_name == "cat"


def test_a_job_whose_memory_is_not_known_waits_until_the_device_is_free(store: Store) -> None:
    other = running(store)
    submit(store, "bob")
    with store.write() as session:
        session.query(Job).filter(Job.user_name == "bob").update({"device_bytes": None})

    assert next_before(store, other) is None
    job = claim(store)
    assert job is not None
    assert job.user_name == "bob"


def test_others_delay_a_job_by_no_more_than_it_takes_and_one_short_job(store: Store) -> None:
    other = running(store)
    costs_us = 0
    for _ in range(20):
        submit(store, "bob")
        if (job := next_before(store, other)) is None:
            break
        costs_us += job.cost_us
        finish(store, job.number, job.estimated_ms)
    else:
        raise AssertionError("the job waits for ever")
    with store.read() as session:
        alice = session.query(Job).filter(Job.user_name == "alice").one()

    assert alice.cost_us <= costs_us < alice.cost_us + job_cost_us(store)
    submit(store, "cat")
    found = next_before(store, other)
    assert found is not None, "another user has received nothing yet"
    assert found.user_name == "cat"


def job_cost_us(store: Store) -> int:
    with store.read() as session:
        return session.query(Job).filter(Job.user_name == "bob").first().cost_us  # type: ignore[union-attr]


def test_the_limit_of_a_user_holds_for_jobs_that_pass_too(store: Store) -> None:
    other = running(store)
    submit(store, "bob")
    assert next_before(store, other, user_running=1) is not None
    submit(store, "bob")

    assert next_before(store, other, user_running=1) is None


def test_both_jobs_are_queued_again_once_when_their_server_starts_anew(store: Store) -> None:
    other = running(store)
    submit(store, "bob")
    assert next_before(store, other) is not None

    with store.write() as session:
        assert lifecycle.requeue_own(session, RUNNER) == 2

    again = [claim(store), claim(store), claim(store)]
    assert {job.user_name for job in again if job} == {"alice", "bob"}
    assert [job.attempts for job in again if job] == [2, 2]
