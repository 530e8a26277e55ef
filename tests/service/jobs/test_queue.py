"""The queue in the database, on SQLite and PostgreSQL: fair, whole after anything, quick to ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from tests.service.job_rows import DEVICES, RUNNER, caller, checked, claim, finish, request, submit
from warpcall.errors import Busy
from warpcall.jobs import UNFINISHED
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.jobs import answers, lifecycle, queue, submissions
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.fair_order import QueuedJob, forecast, in_order
from warpcall_bench.jobs.scheduler import Scheduler
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.jobs.tables import Job, JobShare
from warpcall_bench.runs.operator_modules import OperatorModules
from warpcall_bench.settings import BenchSettings
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.quotas import Quotas
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow


def run_all(store: Store, took_ms: int = 5000) -> list[str]:
    """Run what waits, one after the other; whose jobs these were."""
    order = []
    while job := claim(store):
        order.append(job.user_name)
        finish(store, job.number, took_ms)
    return order


def test_one_job_does_not_wait_behind_two_hundred(store: Store) -> None:
    for _ in range(200):
        submit(store, "alice")
    began = [claim(store) for _ in range(3)]
    submit(store, "bob")

    following = [claim(store), claim(store)]

    assert {job.user_name for job in began if job} == {"alice"}
    assert "bob" in [job.user_name for job in following if job]


def test_users_share_the_time_and_not_the_number_of_jobs(store: Store) -> None:
    for _ in range(6):
        submit(store, "alice", cases=10)
    for _ in range(30):
        submit(store, "bob")

    order = []
    while job := claim(store):
        order.append(job.user_name)
        finish(store, job.number, job.estimated_ms)

    half = order[: len(order) // 2]
    assert order.count("alice") == 6
    assert half.count("bob") > 2 * half.count("alice"), "bob's jobs are shorter"
    assert "alice" in half


def test_users_are_charged_what_their_jobs_took(store: Store) -> None:
    for user in ("alice", "bob") * 6:
        submit(store, user)

    order = []
    while job := claim(store):
        order.append(job.user_name)
        finish(store, job.number, 40_000 if job.user_name == "alice" else 4_000)

    assert order[:2] == ["alice", "bob"]
    assert order[2:6] == ["bob"] * 4, "hers took ten times as long"


def test_whoever_was_idle_has_saved_nothing_up(store: Store) -> None:
    for _ in range(20):
        submit(store, "alice")
    run_all(store)
    for _ in range(4):
        submit(store, "alice")
        submit(store, "bob")

    order = run_all(store)

    assert order[0] == "alice"
    assert sorted(order[:4]) == ["alice", "alice", "bob", "bob"]


def test_the_backlog_counts_jobs_by_state_and_knows_the_oldest(store: Store) -> None:
    with store.read() as session:
        empty = queue.backlog(session)
    for _ in range(4):
        submit(store, "alice")
    done, running = claim(store), claim(store)
    assert done is not None
    assert running is not None
    finish(store, done.number, 1000)
    with store.write() as session:
        waiting = session.scalars(sa.select(Job).where(Job.state == "queued")).all()
        waiting[1].created_ms -= 60_000

    with store.read() as session:
        found = queue.backlog(session)

    assert (empty.jobs, empty.oldest_s()) == ({}, 0)
    assert found.jobs == {"queued": 2, "preparing": 1}
    assert 60 <= found.oldest_s() < 3600


def test_a_higher_priority_goes_first_and_what_was_begun_before_all(store: Store) -> None:
    for priority in ("low", "normal", "high"):
        submit(store, "alice", priority=priority)
    interrupted = claim(store)
    assert interrupted is not None
    submit(store, "bob", priority="high")
    with store.write() as session:
        job = session.get_one(Job, interrupted.number)
        lifecycle.interrupt(session, job, "its process was killed", 100)

    order = [claim(store) for _ in range(4)]

    assert [(j.user_name, j.priority) for j in order if j] == [
        ("alice", 0),
        ("bob", 0),
        ("alice", 1),
        ("alice", 2),
    ]
    assert order[0] is not None
    assert (order[0].number, order[0].attempts) == (interrupted.number, 2)


def test_a_user_has_no_more_jobs_running_and_waiting_than_allowed(store: Store) -> None:
    for _ in range(3):
        submit(store, "alice")
    submit(store, "bob")

    users_of = [job and job.user_name for job in (claim(store, 2) for _ in range(4))]

    assert users_of == ["alice", "bob", "alice", None]
    with store.write() as session, pytest.raises(Busy, match="alice has 3 jobs that are not"):
        submissions.submit(session, caller("alice"), request(), checked(), None, 3)


def test_an_interrupted_job_is_run_again_once(store: Store) -> None:
    submit(store, "alice")
    states = []
    for _ in range(3):
        job = claim(store)
        if job is None:
            break
        with store.write() as session:
            lifecycle.interrupt(session, session.get_one(Job, job.number), "it was killed", 1000)
        with store.read() as session:
            states.append(session.get_one(Job, job.number).state)

    assert states == ["queued", "interrupted"]
    with store.read() as session:
        row = session.scalars(sa.select(Job)).one()
        assert (row.exit_class, row.took_ms) == ("interrupted", 2000)
        assert row.detail == "it was killed; it was run 2 times"


class SlowDatabase(JobDatabase):
    """What it writes is there before it knows."""

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().write(*args, **kwargs)
        await asyncio.sleep(0.3)
        return answer


def test_a_server_that_stops_as_it_takes_a_job_puts_it_back(store: Store, tmp_path: Path) -> None:
    lane = SimpleNamespace(
        name="cpu",
        hello={},
        state="ready",
        warming="",
        device_lease=DeviceLease(lambda: False, lambda: False, lambda: None),
    )
    engine: Any = SimpleNamespace(all_lanes=[lane])

    def state_of(session: Session, job: str) -> tuple[str, int]:
        found = submissions.find(session, caller("alice"), job)
        return found.state, found.attempts

    async def play(job: str) -> tuple[str, int]:
        database = SlowDatabase(store)
        settings = BenchSettings.load(data_dir=tmp_path)
        modules = OperatorModules(settings)
        identity = ServerIdentity(tmp_path)
        membership = Membership(engine, store, identity, "http://x", lambda: False)
        quotas = Quotas(settings)
        scheduler = Scheduler(
            settings,
            engine,
            database,
            modules,
            AccountSync(store, Snapshot(), quotas),
            membership,
            Artefacts(settings, store, membership, quotas),
        )
        scheduler.start()
        while (await database.read(state_of, job))[0] != "preparing":
            await asyncio.sleep(0.01)
        await scheduler.stop()
        database.close()
        with store.read() as session:
            return state_of(session, job)

    assert asyncio.run(play(submit(store, "alice"))) == ("queued", 0)


def test_a_cancelled_job_that_is_lost_is_not_run_again(store: Store) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job is not None
    with store.write() as session:
        submissions.cancel(session, session.get_one(Job, job.number))
        assert list(queue.to_cancel(session, RUNNER)) == [job.number]
        lifecycle.requeue_own(session, RUNNER)

    with store.read() as session:
        assert session.get_one(Job, job.number).state == "cancelled"


def test_places_say_who_is_next_and_when(store: Store) -> None:
    ids = [submit(store, user) for user in ("alice", "alice", "bob")]
    claim(store)

    with store.read() as session:
        whole = answers.whole_queue(session, caller("alice"), DEVICES)
        page = answers.jobs(session, caller("alice"), Filter(user="alice"), DEVICES)

    assert [(e.position, e.user) for e in whole.entries] == [(0, "alice"), (1, "bob"), (2, "alice")]
    assert [e.id for e in whole.entries] == [ids[0], ids[2], ids[1]]
    ends = [entry.ends_in_s for entry in whole.entries]
    assert ends == sorted(ends)
    assert [entry.starts_in_s for entry in whole.entries[1:]] == ends[:2]
    assert [(job.id, job.position) for job in page.jobs] == [(ids[1], 2), (ids[0], None)]


def test_in_order_and_forecast_without_a_database() -> None:
    entries = [
        QueuedJob(i, user, 0, 0, cost) for i, (user, cost) in enumerate([("a", 5), ("b", 1)])
    ]

    ordered = list(in_order(entries, {"a": 3}))

    assert [(t.entry.user, t.start_us, t.end_us) for t in ordered] == [
        ("b", 0, 1),
        ("a", 3, 8),
    ]
    assert forecast([4.0, 1.0, 1.0], [0.0, 2.0]) == [(0.0, 4.0), (2.0, 3.0), (3.0, 4.0)]
    assert forecast([1.0], []) == [(0.0, 1.0)]


def test_two_that_claim_at_once_get_different_jobs(database: Database) -> None:
    stores = [database.store() for _ in range(4)]
    stores[0].migrate()
    for _ in range(12):
        submit(stores[0], "alice")

    with ThreadPoolExecutor(4) as pool:
        found = [job for job in pool.map(lambda i: claim(stores[i % 4]), range(16)) if job]

    assert len({job.number for job in found}) == len(found) == 12
    with stores[0].read() as session:
        waiting = sa.select(sa.func.count(Job.number)).where(Job.state.in_(UNFINISHED))
        assert session.scalars(waiting).one() == 12
        assert total(session) == sum(job.cost_us for job in found)
    for store in stores:
        store.close()


def total(session: Session) -> int:
    """Virtual time that has been charged."""
    return sum(session.scalars(sa.select(JobShare.end_us)))
