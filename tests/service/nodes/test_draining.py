"""Servers that take no more jobs: drained by an administrator, stopped, or near the end of their time."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import sqlalchemy as sa

from tests.service.databases import Database
from tests.service.job_requests import CASE, client, ended, reached, show, submit
from tests.service.job_rows import RUNNER
from tests.service.job_rows import submit as submit_row
from tests.service.jobs.test_two_servers import WAITS, beside, has_logged, measured_once, states
from tests.service.nodes.test_nodes import states as nodes_of
from tests.service.stopped_lane import stopped_lane
from tests.template import TEMPLATE
from tests.waiting import until_lasting as until
from warpcall import Client
from warpcall_bench.jobs import queue
from warpcall_bench.jobs.placement import Device
from warpcall_bench.jobs.tables import Job as Row
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


def test_a_job_that_takes_longer_than_its_server_runs_is_left_to_others(store: Store) -> None:
    long, short = submit_row(store, "alice", cases=10), submit_row(store, "alice", cases=1)

    found = []
    for left_ms in (0, 12_000, 12_000, None):
        with store.write() as session:
            job = queue.claim(session, RUNNER, Device(RUNNER, "", ""), lambda user: 10, left_ms)
            found.append(job and job.id)

    assert found == [None, short, None, long]


@only_postgresql
def test_a_drained_server_takes_no_job_and_a_stopped_one_hands_its_job_back(
    database: Database, tmp_path: Path
) -> None:
    with beside(database, tmp_path / "a") as a, client(a) as http:
        own = http.get("/v1/nodes").json()["node"]
        job = submit(http, **WAITS)
        reached(http, job, lambda found: found["cases_done"] == 1)
        said = database.command("drain", own)
        until(lambda: nodes_of(a)[a.url] == "draining")
        with beside(database, tmp_path / "b") as b, client(b) as other:
            until(lambda: nodes_of(b) == {a.url: "draining", b.url: "alive"})
            taken = [ended(other, submit(other, fresh=True)) for _ in range(2)]
            still = show(other, job)["state"]
            a.process.send_signal(signal.SIGTERM)
            reached(
                other, job, lambda found: found["state"] == "running" or found["cases_done"] == 2
            )
            (tmp_path / "continue_file").touch()
            done = ended(other, job)
            states(other, done)
            once = measured_once(other, done)
            until(lambda: nodes_of(b)[a.url] == "stopped")
            wrong = database.command("drain", own, status=1)
            assert all(has_logged(b, f"the job {one['id']} ended on cpu: ok") for one in taken)

    assert said.startswith(f"{own} on ")
    assert said.endswith(" takes no more jobs\n")
    assert still == "running"
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert once
    assert f"no server '{own}' runs" in wrong


@only_postgresql
def test_sigterm_to_every_process_at_once_hands_the_job_back_and_lets_calls_end(
    database: Database, tmp_path: Path
) -> None:
    """systemd and Slurm send it to all processes of a server, and not to its first one alone."""
    x = np.ones((2, 3), np.float32)
    with (
        beside(database, tmp_path / "a") as a,
        client(a) as http,
        Client(a.url, retries=0) as gpu,
        ThreadPoolExecutor(1) as threads,
    ):
        job = submit(http, **WAITS)
        reached(http, job, lambda found: found["cases_done"] == 1)
        processes = psutil.Process(a.process.pid).children(recursive=True)
        theirs = [one.pid for one in processes if TEMPLATE not in one.cmdline()]
        gpu.permute(x, dims=(1, 0))  # its plan is made by the process that stands still below
        with stopped_lane(a):
            call = threads.submit(gpu.permute, x, dims=(1, 0))
            until(lambda: '"in_flight":1' in a.get("/readyz")[1])
            for pid in (a.process.pid, *theirs):
                os.kill(pid, signal.SIGTERM)
            until(lambda: f"the job {job['id']} ended on cpu: interrupted" in a.log.read_text())
        got = call.result()
        status = a.process.wait(60)
    with beside(database, tmp_path / "b") as b, client(b) as other:
        (tmp_path / "continue_file").touch()
        done = ended(other, job)
        seen = states(other, done)
        once = measured_once(other, done)

    np.testing.assert_array_equal(got, x.T)
    assert status == 0
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert seen.count("interrupted") == 1
    assert once


@only_postgresql
def test_a_drained_server_leaves_jobs_to_others_until_it_may_take_them_again(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "continue_file").touch()
    with beside(database, tmp_path / "a") as a, client(a) as http:
        (node,) = http.get("/v1/nodes").json()["nodes"]
        own, host = node["id"], node["host"]
        until(lambda: "takes no more" in database.command("drain", host))
        until(lambda: nodes_of(a)[a.url] == "draining")
        with beside(database, tmp_path / "b") as b:
            others = [ended(http, submit(http, fresh=True)) for _ in range(2)]
            assert all(has_logged(b, f"the job {one['id']} ended on cpu: ok") for one in others)
        job = submit(http, fresh=True)
        again = database.command("drain", own, "--off")
        done = ended(http, job)

    assert again == f"{own} on {host} takes jobs again\n"
    assert done["state"] == "succeeded"


def test_only_servers_that_share_a_database_are_drained(sqlite: Database) -> None:
    said = sqlite.command("drain", "x", status=1)

    assert "no server 'x' runs; a server of its own with SQLite cannot be drained" in said


def test_a_server_stops_in_good_order_before_its_time_is_over(
    sqlite: Database, tmp_path: Path
) -> None:
    over = time.time() + 2 * 1 + 10 + 15
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    short = {"WARPCALL_DRAIN_TIMEOUT_S": "1", "WARPCALL_UNTIL": f"{over:.1f}"}
    with beside(sqlite, folder, **short) as server, client(server) as http:
        long = submit(http, cases=[{**CASE, "shape": [8, n]} for n in range(2, 12)])
        server.process.wait(60)
        log = server.log.read_text()

    store = sqlite.store()
    with store.read() as session:
        (row,) = session.scalars(sa.select(Row))
        left = row.id, row.state, row.attempts
    store.close()
    assert left == (long["id"], "queued", 0), "it is estimated to take longer than there is time"
    assert "its time is over: the server stops" in log
    assert "the server has stopped" in log
    assert server.process.returncode == 0


@pytest.mark.parametrize("given", ["soon", "2026-13-01", "-5", "1" * 400])
def test_a_time_that_is_none_is_refused(given: str, sqlite: Database) -> None:
    said = sqlite.command("--until", given, status=2)

    assert "until" in said.lower()
