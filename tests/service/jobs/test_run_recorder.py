"""The recorder of a run keeps and writes little, whatever the run reports, and always ends."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from tests.service.job_rows import claim, claimed, submit
from warpcall_bench.jobs import run_recorder
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.queue import Claim
from warpcall_bench.jobs.run_recorder import PROGRESS_BURST, REFUSED, RunRecorder
from warpcall_bench.jobs.tables import Job, JobTag
from warpcall_bench.runs.events import Progress
from warpcall_bench.runs.runner import Outcome
from warpcall_service.store.database import Store


def test_a_flood_of_progress_adds_few_rows_and_keeps_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def never(*rest: object) -> None:
        await asyncio.Event().wait()

    async def play() -> list[int]:
        nonlocal now
        database: Any = SimpleNamespace(write=never, notify=lambda number: None)
        recorder = RunRecorder(database, Claim(1, "me", 1), lambda *_: None)
        waiting = []
        for _ in range(3):
            for number in range(10_000):
                phase = ("warmup", "rounds")[number % 2]
                recorder.on_event(Progress({"position": 0, "phase": phase}))
            waiting.append(recorder._changes.qsize())
            now += 10.0
        await recorder.abandon()
        return waiting

    at_once, later, last = asyncio.run(play())

    assert at_once == PROGRESS_BURST
    assert later - at_once == last - later == 40


@pytest.mark.parametrize("lost", ["a result", "the end"])
def test_a_change_that_the_database_refuses_ends_the_job_as_invalid(
    lost: str, store: Store
) -> None:
    bad = f"a{chr(0)}b" if store.path is None else f"a{chr(0xD800)}b"
    submit(store, "ann")
    job = claim(store)
    assert job is not None
    stopped: list[tuple[str, str]] = []

    def break_it(session: Session, job: Job) -> None:
        job.note = bad

    async def play() -> object:
        database = JobDatabase(store)
        recorder = RunRecorder(database, claimed(job), lambda *why: stopped.append(why))
        if lost == "a result":
            recorder.put(break_it)
        detail = bad if lost == "the end" else ""
        outcome = Outcome("ok" if lost == "a result" else "killed", detail, (), 0.0, 1.0)
        async with asyncio.timeout(20):
            state = await recorder.end(outcome, counts=True)
        database.close()
        return state

    state = asyncio.run(play())

    with store.read() as session:
        ended = session.get_one(Job, job.number)
    assert (state, ended.state, ended.exit_class) == ("invalid",) * 3
    assert ended.detail == REFUSED
    assert stopped == [("invalid", REFUSED)]


def test_a_write_that_conflicts_for_ever_ends_the_job(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "RETRY_S", 0.01)
    store = sqlite.store()
    store.migrate()
    submit(store, "ann")
    job = claim(store)
    assert job is not None

    def repeat_row(session: Session, job: Job) -> None:
        session.add(JobTag(job_number=job.number, tag="x"))
        session.flush()
        session.execute(sa.insert(JobTag).values(job_number=job.number, tag="x"))

    async def play() -> object:
        database = JobDatabase(store)
        recorder = RunRecorder(database, claimed(job), lambda *_: None)
        recorder.put(repeat_row)
        async with asyncio.timeout(20):
            state = await recorder.end(Outcome("ok", "", (), 0.0, 1.0), counts=True)
        database.close()
        return state

    assert asyncio.run(play()) == "invalid"
    store.close()
