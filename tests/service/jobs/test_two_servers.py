"""Two real servers on one database: each job is measured by one of them, whatever befalls the
other.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import sqlalchemy as sa

from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres
from tests.service.job_requests import (
    BRIEF,
    CASE,
    Job,
    client,
    ended,
    events,
    measurer,
    processes,
    reached,
    results,
    show,
    submit,
)
from tests.service.requests import logged
from tests.suspended import suspend
from tests.waiting import lives
from tests.waiting import until_lasting as until
from warpcall_bench.jobs.tables import Job as Row

CLOCK = Path(__file__).parents[1] / "clock"
LEASE_S = 10
CASES = [{**CASE, "shape": [8, n]} for n in (9, 13, 11)]
WAITS: dict[str, Any] = {
    "implementations": ["wait"],
    "cases": CASES,
}  # in the second case, for the test's word
RUN = ["queued", "preparing", "waiting_gpu", "running"]
END = ["finalizing", "succeeded"]

pytestmark = [pytest.mark.parametrize("database", ["postgresql"], indirect=True), pytest.mark.slow]


@contextmanager
def beside(
    database: Database, folder: Path, under: Sequence[str] = (), **settings: str
) -> Iterator[Server]:
    """A server on this database; its waiting jobs go on once `continue_file` is beside its folder."""
    own = {
        "WARPCALL_DATA_DIR": str(folder),
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_JOB_LEASE_S": str(LEASE_S),
        "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
        "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(Path(__file__).parents[3])]),
        "CONTINUE_FILE": str(folder.parent / "continue_file"),
    }
    with running_server({**database.settings, **own, **settings}, under) as server:
        yield server


def has_logged(server: Server, text: str) -> bool:
    return any(text in line.get("message", "") for line in logged(server))


def states(http: httpx.Client, job: Job) -> list[str]:
    """All states of a job that has ended; its events have no gap, and none is there twice."""
    found = list(events(http, job))
    assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
    cases = [event["data"]["position"] for event in found if event["kind"] == "case"]
    assert sorted(cases) == list(range(job["cases_total"])), "each case once"
    return [event["data"]["state"] for event in found if event["kind"] == "state"]


def measured_once(http: httpx.Client, job: Job) -> bool:
    measured = results(http, job)["measurements"]
    return Counter(m["case"] for m in measured) == Counter({m["case"]: 1 for m in measured}) and (
        len(measured) == job["cases_total"]
    )


def waiting_on(server: Server) -> Job:
    """A job that this server runs: its first case is measured, and its second one waits."""
    with client(server) as http:
        job = submit(http, **WAITS)
        return reached(http, job, lambda found: found["cases_done"] == 1, passes=False)


def goes_on_undisturbed(job: Job, server: Server, other: Server, continue_file: Path) -> Job:
    """The job that waits on `server` ends there, although `other` has come, and runs the job returned."""
    process = measurer(server)
    with client(other) as http:
        own = ended(http, submit(http))
        assert (own["state"], own["attempts"]) == ("succeeded", 1)
        assert has_logged(other, f"the job {own['id']} ended on cpu: ok")
        assert lives(process)
        continue_file.touch()
        done = ended(http, job)
        assert (done["state"], done["attempts"]) == ("succeeded", 1)
        assert states(http, done) == [*RUN, *END]
        assert measured_once(http, done)
    return own


def test_a_server_that_stood_still_ends_its_run_and_the_other_ones_result_stays(
    database: Database, tmp_path: Path
) -> None:
    with beside(database, tmp_path / "a") as a:
        job = waiting_on(a)
        old = [measurer(a), *processes(a)]
        suspend(psutil.Process(a.process.pid))
        try:
            with beside(database, tmp_path / "b") as b, client(b) as http:
                reached(http, job, lambda found: found["attempts"] == 2, passes=False)
                new = measurer(b)
                os.kill(a.process.pid, signal.SIGCONT)
                until(lambda: not any(map(lives, old)))
                until(lambda: has_logged(a, f"another server has taken the job {job['id']} over"))
                unharmed = lives(new), show(http, job)["state"] in RUN
                (tmp_path / "continue_file").touch()
                done = ended(http, job)
                seen = states(http, done)
                once = measured_once(http, done)
        finally:
            os.kill(a.process.pid, signal.SIGCONT)

    assert unharmed == (True, True)
    assert (done["state"], done["attempts"]) == ("succeeded", 2)
    assert seen == [*RUN, "interrupted", *RUN, *END]
    assert once


def test_a_clock_that_is_ahead_or_jumps_takes_no_job_from_a_server_that_lives(
    database: Database, tmp_path: Path
) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    ahead.write_text("120")
    behind.write_text("0")
    path = {"PYTHONPATH": f"{CLOCK}{os.pathsep}{Path(__file__).parents[3]}"}
    with beside(database, tmp_path / "a", CLOCK=str(behind), **path) as a:
        job = waiting_on(a)
        with beside(database, tmp_path / "b", CLOCK=str(ahead), **path) as b:
            ahead.write_text("86400")
            behind.write_text("-86400")
            own = goes_on_undisturbed(job, a, b, tmp_path / "continue_file")

    created = [datetime.fromisoformat(one["created_at"]) for one in (job, own)]
    assert created[1] - created[0] > timedelta(hours=12), "the clock of one server was ahead"


def test_a_server_with_the_same_host_and_path_is_another_one(
    database: Database, tmp_path: Path
) -> None:
    """As in two containers: one name of the host, one path of the folder, and two folders."""
    folder = tmp_path / "data"
    folder.mkdir()
    script = f'mount -t tmpfs none {folder} && exec "$@"'
    apart = ("unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-ec", script, "sh")
    with beside(database, folder, apart) as a:
        job = waiting_on(a)
        with beside(database, folder, apart) as b:
            goes_on_undisturbed(job, a, b, tmp_path / "continue_file")


def test_a_server_on_a_copy_of_the_folder_is_another_one(
    database: Database, tmp_path: Path
) -> None:
    """As after a restored backup: the copy has the first server's id in it."""
    with beside(database, tmp_path / "a") as a:
        job = waiting_on(a)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with beside(database, tmp_path / "b") as b:
            goes_on_undisturbed(job, a, b, tmp_path / "continue_file")


def test_of_two_servers_with_one_folder_one_runs_jobs(database: Database, tmp_path: Path) -> None:
    with beside(database, tmp_path / "a") as a:
        job = waiting_on(a)
        with beside(database, tmp_path / "a") as b, client(b) as http:
            until(lambda: has_logged(b, "no jobs run here: another server has"))
            second = submit(http)
            (tmp_path / "continue_file").touch()
            done = [ended(http, one) for one in (job, second)]
            assert processes(b) == []
            said = [line for line in logged(b) if "no jobs run" in line.get("message", "")]
            assert len(said) == 1, "the second server says it once, not at each poll"

    assert [(one["state"], one["attempts"]) for one in done] == [("succeeded", 1)] * 2


def test_a_job_ends_once_although_its_connections_are_cut_at_every_write(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    name = database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    (tmp_path / "continue_file").touch()
    many = [{**CASE, "shape": [8, n]} for n in range(2, 14)]  # so that there are many writes
    with beside(database, tmp_path / "a") as a, beside(database, tmp_path / "b") as b:
        with client(a) as http:
            job = submit(http, cases=many)

        def running() -> bool:
            return bool(processes(a) or processes(b))

        until(running, passes=True)
        with psycopg.connect(postgres.url.format("postgres"), autocommit=True) as others:
            while running():
                others.execute(cut)
                time.sleep(0.03)  # so that some statements are done between two cuts
        with client(b) as http:
            done = ended(http, job)
            seen = states(http, done)
            assert measured_once(http, done)

    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert seen == [*RUN, *END]


def test_12_jobs_on_two_servers_run_once_each(database: Database, tmp_path: Path) -> None:
    with (
        beside(database, tmp_path / "a") as a,
        beside(database, tmp_path / "b") as b,
        client(a) as one,
        client(b) as other,
    ):
        first = [submit(one, fresh=True, note="first", **WAITS) for _ in range(2)]
        for job in first:  # one on each server
            reached(one, job, lambda found: found["cases_done"] == 1, passes=False)
        (tmp_path / "continue_file").touch()
        others = [submit((one, other)[n % 2], fresh=True, note=str(n)) for n in range(10)]
        jobs = [*first, *others]
        done = [ended(one, job) for job in jobs]
        seen = [states(other, job) for job in done]

    store = database.store()
    with store.read() as session:
        rows = session.execute(sa.select(Row.runner, Row.attempts, Row.fence)).all()
    store.close()
    assert {job["state"] for job in done} == {"succeeded"}
    assert seen == [[*RUN, *END]] * 12
    assert {(attempts, fence) for _, attempts, fence in rows} == {(1, 1)}
    assert len({runner for runner, *_ in rows}) == 2, "both have run some"
    assert json.loads((tmp_path / "a" / "jobs.lock").read_text())["id"] in {r for r, *_ in rows}
