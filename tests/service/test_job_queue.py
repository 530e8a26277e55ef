"""The queue in the database, on SQLite and PostgreSQL: fair, whole after anything, quick to ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from warpcall.errors import Busy, InvalidInput, NotFound
from warpcall_service.callers import Caller, Role
from warpcall_service.jobs import events, queue, records, results, views
from warpcall_service.jobs.messages import Checked
from warpcall_service.jobs.models import WAITING, JobRequest
from warpcall_service.jobs.order import Entry, forecast, in_order
from warpcall_service.jobs.records import Filter
from warpcall_service.schema import Job, JobShare
from warpcall_service.store import Store

RUNNER = "here"
MANY = 1000  # more than a test may have of them


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    store = database.store()
    store.migrate()
    yield store
    store.close()


def caller(name: str, role: Role = "bench") -> Caller:
    return Caller(name, role)


def request(**fields: Any) -> JobRequest:
    cases = [{"shape": [8], "dtype": "F32"}]
    return JobRequest.model_validate({"op": "permute", "cases": cases, **fields})


def checked(cases: int = 1, implementation_s: float = 2.0) -> Checked:
    return {
        "cases": [{"spec": {"n": i}, "key": f"case {i}", "device_bytes": 8} for i in range(cases)],
        "implementation_s": implementation_s,
        "environment": "a machine",
        "kernels_sha256": "0",
    }


def submit(
    store: Store, user: str, *, key: str | None = None, cases: int = 1, **fields: Any
) -> str:
    with store.write() as session:
        asked = request(**{"fresh": True, **fields})
        job, _ = records.submit(session, caller(user), asked, checked(cases), key, MANY)
        return job.id


def claim(store: Store, user_running: int = MANY) -> Job | None:
    with store.write() as session:
        job = queue.claim(session, RUNNER, user_running)
        if job is not None:
            session.flush()
            session.refresh(job)
            session.expunge(job)
        return job


def finish(store: Store, number: int, took_ms: int, state: Any = "succeeded") -> None:
    with store.write() as session:
        job = session.get_one(Job, number)
        queue.end(session, job, state, "ok", "", took_ms)


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


def test_what_another_server_lost_is_found_and_what_it_has_is_left(store: Store) -> None:
    for _ in range(3):
        submit(store, "alice")
    lost, alive, mine = claim(store), claim(store), claim(store)
    assert lost and alive and mine  # noqa: PT018  # there are three
    with store.write() as session:
        for job, runner, ago_ms in ((lost, "there", 120_000), (alive, "elsewhere", 1000)):
            row = session.get_one(Job, job.number)
            row.runner, row.seen_ms = runner, events.now_ms() - ago_ms
        session.flush()
        assert queue.any_lost(session, RUNNER)
        assert queue.recover(session, RUNNER, starting=False) == 1

    with store.read() as session:
        found = {job.number: job.state for job in session.scalars(sa.select(Job))}
    assert found == {lost.number: "queued", alive.number: "preparing", mine.number: "preparing"}
    with store.write() as session:
        assert queue.recover(session, RUNNER, starting=True) == 1
        assert session.get_one(Job, mine.number).state == "queued"


def test_a_cancelled_job_that_is_lost_is_not_run_again(store: Store) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job is not None
    with store.write() as session:
        records.cancel(session, session.get_one(Job, job.number))
        assert list(queue.to_cancel(session, RUNNER)) == [job.number]
        queue.recover(session, RUNNER, starting=True)

    with store.read() as session:
        assert session.get_one(Job, job.number).state == "cancelled"


def test_a_submission_that_is_sent_again_finds_its_job(store: Store) -> None:
    first = submit(store, "alice", key="a")

    assert submit(store, "alice", key="a") == first
    assert submit(store, "alice", key="b") != first
    assert submit(store, "bob", key="a") != first
    with pytest.raises(InvalidInput, match="Idempotency-Key must be a new one") as caught:
        submit(store, "alice", key="a", note="else")
    assert caught.value.field == "idempotency-key"


def test_what_was_measured_is_not_measured_again_unless_asked(store: Store) -> None:
    first = submit(store, "alice", fresh=False)
    job = claim(store)
    assert job is not None
    unfinished = submit(store, "alice", fresh=False)
    with store.write() as session:
        session.get_one(Job, job.number).environment = "a machine"
    finish(store, job.number, 5000)

    assert submit(store, "alice", fresh=False, note="who cares", priority="low") == first
    others = {
        submit(store, "alice", fresh=True),
        submit(store, "alice", fresh=False, precision="quick"),
        submit(store, "alice", fresh=False, implementations=["torch"]),
        submit(store, "alice", fresh=False, cases=2),
        submit(store, "bob", fresh=False),
    }
    assert len(others | {first, unfinished}) == 7


def test_estimates_learn_from_what_jobs_took(store: Store) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job is not None
    finish(store, job.number, 2 * job.nominal_ms)

    with store.read() as session:
        estimate = records.estimated(session, request(), checked())

    assert estimate.estimated_s == pytest.approx(2 * estimate.nominal_s)


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


def test_lists_are_filtered_and_paged_and_show_nobody_elses(store: Store) -> None:
    ids = [submit(store, "alice", tags=[f"t{i % 2}", "all"]) for i in range(5)]
    theirs = submit(store, "bob", op="conv", tags=["all"])

    def listed(who: Caller, **wanted: Any) -> list[str]:
        with store.read() as session:
            return [job.id for job in records.listed(session, who, Filter(**wanted))]

    alice, admin = caller("alice"), caller("root", "admin")
    assert listed(alice) == ids[::-1]
    assert listed(alice, tag="t0") == [ids[4], ids[2], ids[0]]
    assert listed(alice, limit=2) == ids[:1:-1], "one more than asked says that there are more"
    assert listed(alice, before=ids[2]) == [ids[1], ids[0]]
    assert listed(alice, user="bob") == listed(alice, op="conv") == []
    assert listed(alice, state="running") == []
    assert listed(admin) == [theirs, *ids[::-1]]
    assert listed(admin, user="bob") == listed(admin, op="conv") == [theirs]
    with pytest.raises(NotFound, match="or it is not yours"):
        listed(alice, before=theirs)


def test_a_case_is_stored_once_and_found_in_its_history(store: Store) -> None:
    for _ in range(2):
        submit(store, "alice")
    for environment in ("one", "two"):
        job = claim(store)
        assert job is not None
        with store.write() as session:
            row = session.get_one(Job, job.number)
            row.environment, row.fingerprint = environment, json.dumps({"torch": environment})
            for _ in range(2):
                queue.save_case(session, row, 0, result())
            assert row.cases_done == 1
            assert queue.unmeasured(session, row) == []
        finish(store, job.number, 1000)

    with store.read() as session:
        found = results.history(session, caller("alice"), "permute", "torch", "case 0", 10)
        theirs = results.history(session, caller("bob"), "permute", "torch", "case 0", 10)
    assert [(p.environment, p.changed) for p in found.points] == [("two", ["torch"]), ("one", [])]
    assert found.points[0].measurement.median_us == 2.0
    assert theirs.points == []


def result() -> dict[str, Any]:
    implementation = {
        "name": "torch",
        "status": "ok",
        "error": None,
        "method": "perf_counter",
        "n": 3,
        **dict.fromkeys(("p5_us", "p25_us", "p75_us", "p95_us", "min_us"), 2.0),
        **dict.fromkeys(("median_us", "ci_low_us", "ci_high_us"), 2.0),
        **dict.fromkeys(("gb_per_s", "share_of_limit", "peak_bytes", "hot_us", "host_us"), None),
        "energy_mj": None,
        "relative": None,
        "samples_us": [2.0, 2.0, 2.0],
        "tags": [],
    }
    return {"implementations": [implementation]}


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
