"""What a run may write, on SQLite and PostgreSQL: nothing once its job is another one's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from tests.service.job_rows import RUNNER, claim, claimed, submit
from warpcall_bench.jobs import events, lifecycle, queue, submissions
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.run_recorder import RunRecorder
from warpcall_bench.jobs.tables import Job
from warpcall_service.store.database import Store, StoreError

pytestmark = pytest.mark.slow


def test_a_job_is_taken_from_a_silent_server_and_left_to_one_that_gave_a_sign(
    store: Store,
) -> None:
    for _ in range(2):
        submit(store, "alice")
    silent, alive = claim(store), claim(store)
    assert silent and alive  # noqa: PT018  # there are two
    with store.write() as session:
        seen = queue.heartbeats(session)
        assert (
            queue.write_heartbeats(session, {claimed(alive): 5000, claimed(silent): 5000}) == set()
        )
    with store.write() as session:
        later = queue.heartbeats(session)
        assert queue.write_heartbeats(session, {claimed(alive): 10_000}) == set()

    taken = []
    for job, heartbeat in ((silent, seen), (alive, later), (silent, later), (silent, later)):
        with store.write() as session:
            taken.append(lifecycle.take_over(session, job.number, heartbeat[job.number]))

    assert taken == [False, False, True, False]
    with store.read() as session:
        found = {job.number: (job.state, job.took_ms) for job in session.scalars(sa.select(Job))}
    assert found == {silent.number: ("queued", 5000), alive.number: ("preparing", 0)}


def test_a_server_that_starts_finds_what_its_earlier_life_left(store: Store) -> None:
    submit(store, "alice")
    submit(store, "alice")
    mine, other = claim(store), claim(store, runner="there")
    assert mine and other  # noqa: PT018  # there are two

    with store.write() as session:
        assert lifecycle.requeue_own(session, RUNNER) == 1

    with store.read() as session:
        found = {job.number: job.state for job in session.scalars(sa.select(Job))}
    assert found == {mine.number: "queued", other.number: "preparing"}


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_that_stands_still_in_a_transaction_holds_up_no_other(
    database: Database, store: Store
) -> None:
    other = database.store()

    def lock_beside_one_that_stands_still() -> None:
        with store.write() as stands_still:
            queue.lock(stands_still)
            deadline = time.monotonic() + 60
            while not locked and time.monotonic() < deadline:
                with suppress(StoreError), other.write() as session:
                    locked.append(queue.lock(session))
            stands_still.execute(sa.select(Job.number))

    locked: list[int] = []
    with pytest.raises(StoreError, match="cannot be written"):
        lock_beside_one_that_stands_still()

    other.close()
    assert locked == [0]


def test_silence_does_not_count_while_nobody_can_write(database: Database, store: Store) -> None:
    """A server whose heartbeats wait for the same lock must not look dead to one that only reads."""
    other = database.store()

    with store.write() as session:
        queue.lock(session)
        with pytest.raises(StoreError), other.write() as looking:
            queue.heartbeats(looking)

    other.close()


CHANGES: dict[str, Callable[[Session, Job], None]] = {
    "state": lambda session, job: lifecycle.advance(session, job, "running"),
    "event": lambda session, job: events.append_event(session, job, "progress", {}),
    "result": lambda session, job: lifecycle.save_case(session, job, 0, {"implementations": []}),
    "end": lambda session, job: lifecycle.end_job(session, job, "timed_out", "timeout", "", 75_000),
    "put back": lambda session, job: lifecycle.interrupt(session, job, "", 1, counts=False),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("successor", [None, "there", RUNNER])
def test_a_run_whose_job_was_taken_writes_nothing(
    what: str, successor: str | None, store: Store
) -> None:
    """Whether the job still waits, runs on another server, or on another device of the same one."""
    submit(store, "alice")
    first = claim(store)
    assert first is not None
    with store.write() as session:
        assert lifecycle.take_over(session, first.number, queue.heartbeats(session)[first.number])
    if successor is not None:
        assert claim(store, runner=successor) is not None
    before = everything(store)
    replaced = []

    async def write() -> None:
        database = JobDatabase(store)
        recorder = RunRecorder(database, claimed(first), lambda *_: replaced.append(True))
        recorder.put(CHANGES[what], charges=what in ("end", "put back"))
        recorder.put(CHANGES["event"])
        await recorder.close()
        assert recorder.claim_lost
        assert await database.write(queue.write_heartbeats, {claimed(first): 5000}) == {
            claimed(first)
        }
        database.close()

    asyncio.run(write())

    assert replaced == [True]
    assert everything(store) == before


def everything(store: Store) -> list[Any]:
    """All rows that a run may write."""
    with store.read() as session:
        tables = [table for name, table in Job.metadata.tables.items() if "job" in name]
        return [tuple(row) for table in tables for row in session.execute(sa.select(table))]


def test_an_end_that_is_written_twice_is_written_once(store: Store) -> None:
    """As when the database did the first, and its answer was lost."""
    submit(store, "alice")
    job = claim(store)
    assert job is not None

    async def write() -> None:
        database = JobDatabase(store)
        for _ in range(2):
            recorder = RunRecorder(database, claimed(job), lambda *_: None)
            recorder.put(CHANGES["state"])
            recorder.put(CHANGES["state"])
            recorder.put(CHANGES["end"], charges=True)
            await recorder.close()
        database.close()

    asyncio.run(write())

    with store.read() as session:
        states = [json.loads(event.data)["state"] for event in events.after(session, job.number, 0)]
    assert states == ["queued", "preparing", "running", "timed_out"]


def test_a_run_that_ends_and_one_who_cancels_do_not_block_each_other(store: Store) -> None:
    """Both lock the queue and the job; in different order each could wait for the other."""
    for _ in range(20):
        submit(store, "alice")
        job = claim(store)
        assert job is not None

        async def write(job: Job = job) -> None:
            database = JobDatabase(store)
            recorder = RunRecorder(database, claimed(job), lambda *_: None)
            recorder.put(CHANGES["end"], charges=True)
            await asyncio.gather(database.write(cancel, job), recorder.close())
            database.close()

        asyncio.run(write())

    with store.read() as session:
        assert set(session.scalars(sa.select(Job.state))) == {"timed_out"}


def cancel(session: Session, job: Job) -> None:
    submissions.cancel(session, session.get_one(Job, job.number))
