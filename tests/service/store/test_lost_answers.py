"""A connection that breaks after a commit, before the server learns of it: nothing is there twice."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from tests.service.databases import Database, Postgres
from tests.service.job_rows import claim, claimed, submit
from tests.waiting import until
from warpcall_service.auth import users
from warpcall_service.auth.usage import Amount, UsageCounter
from warpcall_service.auth.usage_saves import UsageSaves, save_once
from warpcall_service.jobs.database import JobDatabase
from warpcall_service.jobs.run_recorder import RunRecorder
from warpcall_service.runs.events import Progress, StateChanged
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.tables import JobEvent


def changes(store: Store) -> list[tuple[str, str]]:
    """Kind and data of the events since the first run of the only job began."""
    with store.read() as session:
        rows = session.execute(sa.select(JobEvent.kind, JobEvent.data).order_by(JobEvent.sequence))
        return [(kind, data) for kind, data in rows][2:]


needs_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@needs_postgresql
def test_usage_that_was_saved_without_an_answer_counts_once(
    database: Database, store: Store, postgres: Postgres
) -> None:
    with store.write() as session:
        users.add_user(session, "alice")
    counter = UsageCounter()
    saves = UsageSaves(counter)
    counter.add_device_time("alice", "permute", 2.0)
    save = saves.take()
    assert save

    with postgres.losing_answers(), pytest.raises(StoreError), store.write() as session:
        save_once(session, save)
    counter.add_device_time("alice", "permute", 1.0)
    assert saves.take() is save
    with store.write() as session:
        save_once(session, save)
    saves.done()
    later = saves.take()
    assert later
    with store.write() as session:
        save_once(session, later)

    with store.read() as session:
        (row,) = users.usage(session, "2026-01-01")
    assert row.kernel_us == 3_000_000
    saves.done()
    assert saves.take() is None


def test_processes_save_usage_beside_each_other(store: Store) -> None:
    with store.write() as session:
        users.add_user(session, "alice")
    for requests in (1, 2):
        counter = UsageCounter()
        saves = UsageSaves(counter)
        counter._batch["2026-11-23", "alice", ""].add(Amount(requests))
        save = saves.take()
        assert save
        for _ in range(2):
            with store.write() as session:
                save_once(session, save)

    with store.read() as session:
        (row,) = users.usage(session, "2026-01-01")
    assert row.requests == 3


@needs_postgresql
def test_events_that_were_written_without_an_answer_are_there_once(
    database: Database, store: Store, postgres: Postgres
) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job

    async def play() -> None:
        jobs = JobDatabase(store)
        recorder = RunRecorder(jobs, claimed(job), lambda *_: None)
        with postgres.losing_answers():
            recorder.on_event(Progress({"position": 0, "phase": "rounds"}))
            recorder.on_event(StateChanged("running"))
            await asyncio.to_thread(until, lambda: "running" in str(changes(store)))
        recorder.on_event(Progress({"position": 1, "phase": "rounds"}))
        await recorder.close()
        jobs.close()

    asyncio.run(play())

    assert changes(store) == [
        ("progress", '{"position":0,"phase":"rounds"}'),
        ("state", '{"state":"running"}'),
        ("progress", '{"position":1,"phase":"rounds"}'),
    ]
