"""Runs of monitors in the database: claimed once, searched once, behind all other jobs."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa

from tests.service.job_rows import DEVICE, checked, claim, submit
from tests.service.monitors.lab import HOUR_S, JOB, add_runs, at_the_same_time
from tests.service.monitors.series import quiet, times
from warpcall.errors import TooLarge
from warpcall_bench.jobs import lifecycle, queue
from warpcall_bench.jobs.tables import Job
from warpcall_bench.monitors import database, history, runs
from warpcall_bench.monitors.detection import RUNS
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.runs import DueRun, RunLost
from warpcall_bench.monitors.tables import Monitor, MonitorStep
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

ALICE = Caller("alice", "bench")
RUNNING = 2  # jobs of a user at once


def add(store: Store, user: str = "alice") -> str:
    request = MonitorRequest.model_validate({"job": JOB, "every_s": HOUR_S})
    with store.write() as session:
        caller = Caller(user, "bench")
        return database.add(session, caller, request, private=False, most=20).id


def claim_run(store: Store) -> DueRun | None:
    with store.write() as session:
        return runs.claim(session)


def submit_run(store: Store, due: DueRun) -> int:
    with store.write() as session:
        return runs.submit(session, due, checked(2), False)


def search(store: Store, monitor_id: str) -> list[str]:
    """The cases in which the latest run shows steps."""
    with store.write() as session:
        monitor = session.scalars(sa.select(Monitor).where(Monitor.id == monitor_id)).one()
        return [step.case_key for step in history.find_steps(session, monitor)]


def test_a_due_run_is_claimed_once_and_comes_again_after_its_time(store: Store) -> None:
    monitor = add(store)

    due = claim_run(store)
    assert due is not None
    assert due.monitor_id == monitor
    assert claim_run(store) is None
    number = submit_run(store, due)
    assert claim_run(store) is None, "its job has not ended"
    with store.write() as session:
        lifecycle.end_job(session, session.get_one(Job, number), "succeeded", "ok", "")
        assert list(runs.ended(session)) == [due.monitor]
        row = session.get_one(Monitor, due.monitor)
        row.job_number = None
        assert row.next_ms > row.created_ms + 1000 * (HOUR_S - 60)
    assert claim_run(store) is None, "the next one is not due"
    with store.write() as session:
        session.get_one(Monitor, due.monitor).next_ms = 0

    assert claim_run(store) is not None


def test_servers_that_look_at_the_same_time_submit_a_due_run_once(store: Store) -> None:
    add(store)
    submitted = []

    def serve() -> None:
        due = claim_run(store)
        if due is not None:
            submitted.append(submit_run(store, due))

    at_the_same_time(4, serve)

    with store.read() as session:
        jobs = session.scalars(sa.select(Job.number)).all()
    assert submitted == jobs
    assert len(jobs) == 1


def test_monitors_that_are_added_at_the_same_moment_do_not_exceed_the_quota(store: Store) -> None:
    both = threading.Barrier(2)
    refused = []

    def add_one() -> None:
        try:
            with store.write() as session:
                request = MonitorRequest.model_validate({"job": JOB, "every_s": HOUR_S})
                database.add(session, ALICE, request, private=False, most=1)
                with suppress(threading.BrokenBarrierError):
                    both.wait(1.0)  # until the other one has added, unless it cannot
        except TooLarge as error:
            refused.append(str(error))

    at_the_same_time(2, add_one)

    with store.read() as session:
        assert len(database.listed(session, ALICE, None)) == 1
    assert len(refused) == 1


@pytest.mark.parametrize("how", ["claimed again", "paused", "removed"])
def test_a_claim_that_was_lost_submits_nothing(store: Store, how: str) -> None:
    monitor = add(store)
    old = claim_run(store)
    assert old is not None
    with store.write() as session:
        row = session.get_one(Monitor, old.monitor)
        if how == "claimed again":
            row.lease_ms = 0
            session.flush()
            assert runs.claim(session) is not None
        elif how == "paused":
            database.set_paused(session, ALICE, monitor, paused=True)
        else:
            database.remove(session, ALICE, monitor)

    with pytest.raises(RunLost):
        submit_run(store, old)

    with store.read() as session:
        assert session.scalars(sa.select(Job.number)).all() == []


def test_jobs_of_monitors_start_after_all_others_also_after_an_interruption(store: Store) -> None:
    add(store)
    due = claim_run(store)
    assert due is not None
    number = submit_run(store, due)
    submit(store, "alice", priority="low")
    first = claim(store)
    assert first is not None
    assert first.number != number
    second = claim(store)
    assert second is not None
    assert second.number == number
    with store.write() as session:
        job = session.get_one(Job, number)
        lifecycle.interrupt(session, job, "a job of a user needs the device", 5, counts=False)
    submit(store, "bob", priority="low")

    order = [claim(store), claim(store)]

    assert [job.user_name for job in order if job] == ["bob", "alice"]
    assert [job.attempts for job in order if job] == [1, 1]


def test_a_device_is_wanted_only_by_jobs_of_users_that_could_run_on_it(store: Store) -> None:
    def wanted() -> bool:
        with store.read() as session:
            return queue.is_wanted(session, DEVICE, lambda user: RUNNING)

    add(store)
    due = claim_run(store)
    assert due is not None
    submit_run(store, due)
    waits_alone = wanted()
    submit(store, "bob", gpu="another model")
    elsewhere = wanted()
    submit(store, "bob")
    here = wanted()
    for _ in range(2):
        assert claim(store) is not None  # bob's, and the monitor's
    submit(store, "bob")
    submit(store, "bob")
    assert claim(store) is not None

    assert (waits_alone, elsewhere, here) == (False, False, True)
    assert not wanted(), "bob has as many jobs running as they may"


def test_a_run_of_a_monitor_does_not_count_for_the_limits_of_its_user(store: Store) -> None:
    add(store)
    due = claim_run(store)
    assert due is not None
    submit_run(store, due)
    assert claim(store, 1) is not None
    submit(store, "alice")

    assert claim(store, 1) is not None


def test_a_step_is_found_once_with_what_changed(store: Store) -> None:
    monitor = add(store)
    before = times(quiet, 0, 20)
    add_runs(store, monitor, before)
    (first,) = add_runs(store, monitor, [105.0], newest=True, fingerprint='{"driver": "2"}')
    early = search(store, monitor)
    (second,) = add_runs(store, monitor, [105.1], newest=True, fingerprint='{"driver": "2"}')
    found = search(store, monitor)
    add_runs(store, monitor, [105.0] * 5, newest=True)
    later = search(store, monitor)

    with store.read() as session:
        (step,) = session.scalars(sa.select(MonitorStep)).all()
        jobs = {number: id_ for number, id_ in session.execute(sa.select(Job.number, Job.id))}
    assert (early, found, later) == ([], ["case 0"], [])
    assert (jobs[step.job_number], jobs[step.found_number]) == (first, second)
    assert step.changed == '["driver"]'
    assert step.after_us / step.before_us == pytest.approx(1.05, abs=0.01)


def test_times_on_another_model_are_another_history(store: Store) -> None:
    monitor = add(store)
    add_runs(store, monitor, [100.0] * 10, model="a device")
    add_runs(store, monitor, [50.0] * 3, newest=True, model="a faster device")

    assert search(store, monitor) == []
    with store.read() as session:
        row = session.scalars(sa.select(Monitor)).one()
        models = {key.model: len(points) for key, points in history.series_of(session, row).items()}
    assert models == {"a device": 10, "a faster device": 3}


@pytest.mark.slow
def test_only_the_latest_runs_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RUNS", 20)  # each one is a job of 10 ms of CPU
    monitor = add(store)
    add_runs(store, monitor, [50.0] + [100.0] * 20)

    with store.read() as session:
        row = session.scalars(sa.select(Monitor)).one()
        (points,) = history.series_of(session, row).values()
    assert [point.median_us for point in points] == [100.0] * 20
    assert RUNS == 200


def test_a_request_of_a_job_has_at_most_as_many_tags_as_it_may(store: Store) -> None:
    tags = [f"tag-{number}" for number in range(16)]
    request = MonitorRequest.model_validate({"job": {**JOB, "tags": tags}, "every_s": HOUR_S})
    with store.write() as session:
        row = database.add(session, ALICE, request, private=False, most=20)
        job = database.job_request(row)

    assert job.tags == [*tags[:15], f"monitor-{row.id}"]
