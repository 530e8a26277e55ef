"""A connection that breaks after a commit, before the server learns of it: nothing is there twice."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from tests.service.databases import Database, Postgres
from tests.service.job_rows import claim, claimed, submit
from tests.waiting import until
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.run_recorder import RunRecorder
from warpcall_bench.jobs.tables import JobEvent
from warpcall_bench.runs.events import Progress, StateChanged
from warpcall_service.store.database import Store


def changes(store: Store) -> list[tuple[str, str]]:
    """Kind and data of the events since the first run of the only job began."""
    with store.read() as session:
        rows = session.execute(sa.select(JobEvent.kind, JobEvent.data).order_by(JobEvent.sequence))
        return [(kind, data) for kind, data in rows][2:]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
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
