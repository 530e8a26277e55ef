"""What servers ask the database every second on behalf of monitors: one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service.app_routes import services
from tests.service.job_rows import checked
from tests.service.monitors.lab import HOUR_S, JOB
from warpcall_bench.jobs import lifecycle
from warpcall_bench.jobs.tables import Job
from warpcall_bench.monitors import database, deliveries, runs
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.tables import Monitor
from warpcall_bench.monitors.work import Work, find_work
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

IDLE = Work(ended=False, run=False, delivery=False)


def add(store: Store, op: str = "permute") -> None:
    url = "https://example.org/hook"
    job = {**JOB, "op": op}
    request = MonitorRequest.model_validate({"job": job, "every_s": HOUR_S, "notify": url})
    with store.write() as session:
        database.add(session, Caller("alice", "bench"), request, private=False, most=1)


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements that this store executes meanwhile. Applications of other tests of this process
    have stores of their own.
    """
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(store._engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(store._engine, "before_cursor_execute", note)


def work(store: Store) -> Work:
    with store.read() as session:
        return find_work(session)


def test_each_kind_of_work_is_found_until_it_is_done(store: Store) -> None:
    nothing = work(store)
    add(store)
    due = work(store)
    with store.write() as session:
        claimed = runs.claim(session)
        assert claimed is not None
        number = runs.submit(session, claimed, checked(), False)
    submitted = work(store)
    with store.write() as session:
        lifecycle.end_job(session, session.get_one(Job, number), "succeeded", "ok", "")
    ended = work(store)
    with store.write() as session:
        monitor = session.scalars(sa.select(Monitor)).one()
        monitor.job_number = None
        deliveries.add(session, monitor, "recovered", None)
    delivery = work(store)
    with store.write() as session:
        assert deliveries.claim(session) is not None
    sending = work(store)

    assert (nothing, submitted, sending) == (IDLE, IDLE, IDLE)
    assert due == Work(ended=False, run=True, delivery=False)
    assert ended == Work(ended=True, run=False, delivery=False)
    assert delivery == Work(ended=False, run=False, delivery=True)


def test_a_server_with_nothing_to_do_asks_one_statement_at_a_time(tmp_path: Path) -> None:
    async def poll() -> list[str]:
        async with services(tmp_path) as found:
            add(found.store)
            with found.store.write() as session:
                session.scalars(sa.select(Monitor)).one().paused = True
            with statements(found.store) as asked:
                await found.monitors._poll()
            return asked

    begin, statement = asyncio.run(poll())

    assert begin == "BEGIN"
    assert statement.startswith("SELECT EXISTS")


@pytest.mark.parametrize(
    ("uploads", "why"),
    [
        ("sandboxed", ""),
        ("off", "the job was refused: this server runs no uploaded code"),
    ],
)
def test_a_run_fails_unless_the_server_may_take_its_job_soon(
    uploads: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPCALL_UPLOADS", uploads)

    async def poll() -> tuple[Monitor, Work]:
        async with services(tmp_path) as found:  # its sandbox has not been checked yet
            add(found.store, op="alice/problem")
            await found.monitors._poll()
            with found.store.read() as session:
                return session.scalars(sa.select(Monitor)).one(), find_work(session)

    monitor, left = asyncio.run(poll())

    assert monitor.detail.startswith(why)
    assert bool(monitor.detail) == (monitor.failing_ms is not None) == bool(why)
    assert left == Work(ended=False, run=False, delivery=bool(why))
    soon = 60_000 if uploads == "sandboxed" else 1000 * HOUR_S
    assert max(monitor.next_ms, monitor.lease_ms) - monitor.created_ms >= soon
