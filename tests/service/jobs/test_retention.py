"""What the settings let expire is deleted, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service.artefacts.kept import keeping
from tests.service.databases import Database
from tests.service.job_rows import caller, submit
from tests.service.stored import finished, number
from warpcall_bench import retention
from warpcall_bench.jobs import events, printed
from warpcall_bench.jobs.tables import Job, JobCase, JobEvent, JobTag, Measurement, PrintedText
from warpcall_bench.monitors.tables import Monitor, MonitorStep
from warpcall_bench.retention import Retention, delete_some, expired
from warpcall_bench.runs.events import Printed
from warpcall_bench.settings import BenchSettings
from warpcall_bench.shares import database as shares
from warpcall_bench.shares.tables import ShareLink
from warpcall_service.auth import usage
from warpcall_service.auth.tables import Usage
from warpcall_service.auth.usage import Amount
from warpcall_service.store.database import Store
from warpcall_service.store.times import now_ms

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


def job(store: Store, days_ago: float, **fields: Any) -> str:
    """A job that ended some days ago."""
    made = finished(store, "ann", cases=2, **fields)
    with store.write() as session:
        found = session.get_one(Job, number(store, made))
        found.finished_ms = now_ms() - round(days_ago * DAY_MS)
    return made


def settings(**given: Any) -> BenchSettings:
    return BenchSettings(**given)


def counted(store: Store, given: BenchSettings) -> dict[str, int]:
    with store.read() as session:
        return {one.what: one.rows for one in expired(session, given)}


def delete_all(store: Store, given: BenchSettings) -> int:
    """Delete what has expired; in how many transactions."""
    transactions = 1
    while True:
        with store.write() as session:
            if not delete_some(session, given):
                return transactions
        transactions += 1


def jobs(store: Store) -> list[str]:
    with store.read() as session:
        return [*session.scalars(sa.select(Job.id).order_by(Job.number))]


def left(store: Store, table: Any) -> int:
    with store.read() as session:
        return session.scalars(sa.select(sa.func.count()).select_from(table)).one()


def test_nothing_expires_by_default_but_artefacts(database: Database, store: Store) -> None:
    made = job(store, 5000)
    newest = job(store, 4000)

    assert counted(store, settings()) == dict.fromkeys(("jobs", "events", "artefacts", "usage"), 0)
    delete_all(store, settings())

    assert jobs(store) == [made, newest]


def test_an_old_job_goes_with_all_that_is_its_own(database: Database, store: Store) -> None:
    old, young = job(store, 31, tags=["a"]), job(store, 29, tags=["b"])
    submit(store, "ann")
    here = keeping(database, store)
    for one in (old, young):
        here.add(one, b"content")
        with store.write() as session:
            printed.store(
                session, session.get_one(Job, number(store, one)), Printed(1, "ann/x", one)
            )
    with store.write() as session:
        for first, other in ((old, None), (young, old), (young, None)):
            shares.create(session, caller("ann"), first, other, None)

    given = settings(job_days=30)
    before = counted(store, given)
    delete_all(store, given)

    assert before["jobs"] == 1
    assert jobs(store)[:1] == [young]
    assert len(jobs(store)) == 2
    assert (left(store, JobTag), left(store, JobCase), left(store, Measurement)) == (
        1,
        3,
        2 * 8,
    )
    with store.read() as session:
        assert printed.of_case(session, number(store, young), 1) == {"ann/x": young}
    assert left(store, PrintedText) == 1
    assert [row.user_name for row in here.rows()] == ["ann"]
    assert left(store, ShareLink) == 1
    assert counted(store, given)["jobs"] == 0


def test_jobs_that_have_not_ended_or_that_monitors_name_stay(
    store: Store, sqlite: Database
) -> None:
    first, found, latest, other = (job(store, 100) for _ in range(4))
    waiting = submit(store, "ann")
    newest = job(store, 100)
    with store.write() as session:
        monitor = Monitor(
            **dict.fromkeys(("id", "user_name", "op", "request", "detail"), "x"),
            **dict.fromkeys(("every_s", "least", "created_ms", "next_ms", "lease_ms"), 1),
            private=False,
            paused=False,
            fence=0,
            runs=1,
            job_number=number(store, latest),
        )
        session.add(monitor)
        session.flush()
        session.add(
            MonitorStep(
                **dict.fromkeys(("case_key", "implementation", "model", "changed"), "x"),
                **dict.fromkeys(("before_us", "after_us", "noise", "found_ms"), 1),
                monitor_number=monitor.number,
                job_number=number(store, first),
                found_number=number(store, found),
            )
        )

    assert counted(store, settings(job_days=1))["jobs"] == 1
    delete_all(store, settings(job_days=1))

    assert jobs(store) == [first, found, latest, waiting, newest]
    assert other not in jobs(store)


def test_many_jobs_are_deleted_in_several_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    for _ in range(5):
        job(store, 10)
    newest = job(store, 10)

    assert delete_all(store, settings(job_days=1)) == 4
    assert jobs(store) == [newest]


def test_of_old_events_the_last_one_of_each_job_stays(store: Store) -> None:
    old, young = job(store, 8), job(store, 6)

    def kinds(one: str) -> Sequence[str]:
        with store.read() as session:
            return [row.kind for row in events.after(session, number(store, one), 0)]

    before = kinds(young)
    assert len(before) > 1
    assert counted(store, settings(event_days=7))["events"] == len(kinds(old)) - 1
    delete_all(store, settings(event_days=7))

    assert (kinds(old), kinds(young)) == ([before[-1]], before)
    assert left(store, JobEvent) == 1 + len(before)


def test_old_usage_is_deleted(store: Store) -> None:
    days = [retention._day(now_ms() - number * DAY_MS) for number in (0, 2, 4)]
    with store.write() as session:
        usage.save(session, {(day, "ann", "permute"): Amount() for day in days})

    assert counted(store, settings(usage_days=3))["usage"] == 1
    delete_all(store, settings(usage_days=3))

    with store.read() as session:
        assert sorted(session.scalars(sa.select(Usage.day))) == sorted(days[:2])


def test_the_command_only_says_in_a_dry_run_what_it_deletes_otherwise(database: Database) -> None:
    store = database.store()
    store.migrate()
    job(store, 40)
    newest = job(store, 40)
    given = Database(database.kind, {**database.settings, "WARPCALL_JOB_DAYS": "30"})

    dry = given.command("prune", "--dry-run")
    still = len(jobs(store))
    done = given.command("prune")

    assert "jobs      1 would be deleted; job_days keeps them 30 days\n" in dry
    assert "events    0 would be deleted; event_days keeps them for ever\n" in dry
    assert still == 2
    assert "jobs      1 deleted" in done
    assert jobs(store) == [newest]
    store.close()


def test_a_running_server_deletes_what_has_expired(store: Store) -> None:
    job(store, 40)
    newest = job(store, 40)

    async def run(given: BenchSettings) -> None:
        service = Retention(given, store)
        service.start()
        for _ in range(200):
            if jobs(store) == [newest]:
                break
            await asyncio.sleep(0.02)
        await service.stop()

    asyncio.run(run(settings(job_days=30)))

    assert jobs(store) == [newest]
