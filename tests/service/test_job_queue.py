"""The queue in the database, on SQLite and PostgreSQL: fair, whole after anything, quick to ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from tests.service.job_rows import RUNNER, caller, checked, claim, claimed, finish, request, submit
from warpcall.errors import Busy
from warpcall_service.jobs import events, queue, records, views
from warpcall_service.jobs.models import WAITING
from warpcall_service.jobs.office import Office
from warpcall_service.jobs.order import Entry, forecast, in_order
from warpcall_service.jobs.record import Record
from warpcall_service.jobs.records import Filter
from warpcall_service.jobs.scheduler import Scheduler
from warpcall_service.lease import Lease
from warpcall_service.ledger import Ledger
from warpcall_service.schema import Job, JobShare
from warpcall_service.settings import Settings
from warpcall_service.store import Store, StoreError


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
    assert half.count("bob") > 2 * half.count("alice"), "his jobs are shorter"
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


def test_a_higher_priority_goes_first_and_what_was_begun_before_all(store: Store) -> None:
    for priority in ("low", "normal", "high"):
        submit(store, "alice", priority=priority)
    interrupted = claim(store)
    assert interrupted is not None
    submit(store, "bob", priority="high")
    with store.write() as session:
        job = session.get_one(Job, interrupted.number)
        queue.interrupt(session, job, "its process was killed", 100)

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
        records.submit(session, caller("alice"), request(), checked(), None, 3)


def test_an_interrupted_job_is_run_again_once(store: Store) -> None:
    submit(store, "alice")
    states = []
    for _ in range(3):
        job = claim(store)
        if job is None:
            break
        with store.write() as session:
            queue.interrupt(session, session.get_one(Job, job.number), "it was killed", 1000)
        with store.read() as session:
            states.append(session.get_one(Job, job.number).state)

    assert states == ["queued", "interrupted"]
    with store.read() as session:
        row = session.scalars(sa.select(Job)).one()
        assert (row.exit_class, row.took_ms) == ("interrupted", 2000)
        assert row.detail == "it was killed; it was run 2 times"


class FarOffice(Office):
    """What it writes is there before it knows."""

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().write(*args, **kwargs)
        await asyncio.sleep(0.3)
        return answer


def test_a_server_that_stops_as_it_takes_a_job_puts_it_back(store: Store, tmp_path: Path) -> None:
    lane = SimpleNamespace(
        name="cpu", state="ready", lease=Lease(lambda: False, lambda: False, lambda: None)
    )
    engine: Any = SimpleNamespace(every_lane=[lane])

    def state_of(session: Session, job: str) -> tuple[str, int]:
        found = records.find(session, caller("alice"), job)
        return found.state, found.attempts

    async def play(job: str) -> tuple[str, int]:
        office = FarOffice(store)
        scheduler = Scheduler(Settings.load(data_dir=tmp_path), engine, office, Ledger())
        scheduler.start()
        while (await office.read(state_of, job))[0] != "preparing":
            await asyncio.sleep(0.01)
        await scheduler.stop()
        office.close()
        with store.read() as session:
            return state_of(session, job)

    assert asyncio.run(play(submit(store, "alice"))) == ("queued", 0)


def test_a_job_is_taken_from_a_silent_server_and_left_to_one_that_gave_a_sign(
    store: Store,
) -> None:
    for _ in range(2):
        submit(store, "alice")
    silent, alive = claim(store), claim(store)
    assert silent and alive  # noqa: PT018  # there are two
    with store.write() as session:
        seen = queue.signs(session)
        assert queue.beat(session, {claimed(alive): 5000, claimed(silent): 5000}) == set()
    with store.write() as session:
        later = queue.signs(session)
        assert queue.beat(session, {claimed(alive): 10_000}) == set()

    taken = []
    for job, sign in ((silent, seen), (alive, later), (silent, later), (silent, later)):
        with store.write() as session:
            taken.append(queue.take_over(session, job.number, sign[job.number]))

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
        assert queue.recover(session, RUNNER) == 1

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


CHANGES: dict[str, Callable[[Session, Job], None]] = {
    "state": lambda session, job: queue.advance(session, job, "running"),
    "event": lambda session, job: events.note(session, job, "progress", {}),
    "result": lambda session, job: queue.save_case(session, job, 0, {"implementations": []}),
    "end": lambda session, job: queue.end(session, job, "timed_out", "timeout", "", 75_000),
    "put back": lambda session, job: queue.interrupt(session, job, "", 1, counts=False),
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
        assert queue.take_over(session, first.number, queue.signs(session)[first.number])
    if successor is not None:
        assert claim(store, runner=successor) is not None
    before = everything(store)
    replaced = []

    async def write() -> None:
        office = Office(store)
        record = Record(office, claimed(first), lambda: replaced.append(True))
        record.put(CHANGES[what], settles=what in ("end", "put back"))
        record.put(CHANGES["event"])
        await record.close()
        assert record.replaced
        assert await office.write(queue.beat, {claimed(first): 5000}) == {claimed(first)}
        office.close()

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
        office = Office(store)
        for _ in range(2):
            record = Record(office, claimed(job), lambda: None)
            record.put(CHANGES["state"])
            record.put(CHANGES["state"])
            record.put(CHANGES["end"], settles=True)
            await record.close()
        office.close()

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
            office = Office(store)
            record = Record(office, claimed(job), lambda: None)
            record.put(CHANGES["end"], settles=True)
            await asyncio.gather(office.write(cancel, job), record.close())
            office.close()

        asyncio.run(write())

    with store.read() as session:
        assert set(session.scalars(sa.select(Job.state))) == {"timed_out"}


def cancel(session: Session, job: Job) -> None:
    records.cancel(session, session.get_one(Job, job.number))


def test_a_cancelled_job_that_is_lost_is_not_run_again(store: Store) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job is not None
    with store.write() as session:
        records.cancel(session, session.get_one(Job, job.number))
        assert list(queue.to_cancel(session, RUNNER)) == [job.number]
        queue.recover(session, RUNNER)

    with store.read() as session:
        assert session.get_one(Job, job.number).state == "cancelled"


def test_places_say_who_is_next_and_when(store: Store) -> None:
    ids = [submit(store, user) for user in ("alice", "alice", "bob")]
    claim(store)

    with store.read() as session:
        whole = views.whole_queue(session, devices=1)
        page = views.jobs(session, caller("alice"), Filter(), 1)

    assert [(e.position, e.user) for e in whole.entries] == [(0, "alice"), (1, "bob"), (2, "alice")]
    assert [e.id for e in whole.entries] == [ids[0], ids[2], ids[1]]
    ends = [entry.ends_in_s for entry in whole.entries]
    assert ends == sorted(ends)
    assert [entry.starts_in_s for entry in whole.entries[1:]] == ends[:2]
    assert [(job.id, job.position) for job in page.jobs] == [(ids[1], 2), (ids[0], None)]


def test_in_order_and_forecast_without_a_database() -> None:
    entries = [Entry(i, user, 0, 0, cost) for i, (user, cost) in enumerate([("a", 5), ("b", 1)])]

    turns = list(in_order(entries, {"a": 3}))

    assert [(t.entry.user, t.begin_us, t.end_us) for t in turns] == [("b", 0, 1), ("a", 3, 8)]
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
        waiting = sa.select(sa.func.count(Job.number)).where(Job.state.in_(WAITING))
        assert session.scalars(waiting).one() == 12
        assert total(session) == sum(job.cost_us for job in found)
    for store in stores:
        store.close()


def total(session: Session) -> int:
    """Virtual time that has been charged."""
    return sum(session.scalars(sa.select(JobShare.end_us)))
