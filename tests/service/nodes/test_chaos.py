"""Three servers on one database while processes of all kinds are killed: nothing is lost or twice.

    WARPCALL_TEST_KILLS=12 .venv/bin/pytest -n0 tests/service/nodes/test_chaos.py

Twelve kills take a minute. Without the variable the test is skipped.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.servers import Server
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.job_requests import CASE, JOB, gone_is_gone, lives
from tests.service.jobs.test_two_servers import beside
from tests.waiting import until
from warpcall.jobs import UNFINISHED

SEED = 7
KILLS = int(os.environ.get("WARPCALL_TEST_KILLS", "0"))
PAUSE_S = (0.5, 2.5)  # between two kills
JOBS = 8
DEADLINE_S = 30.0  # of a call
LATE_S = DEADLINE_S + 5.0
LEASE_S = "3"  # after which a server's jobs are another's
VICTIMS = {"lane": "worker.main", "job": "worker.job_main", "reaper": "runs.reaper"}
WELL = {"inputs": {"x": {"dtype": "F32", "shape": [2], "data": [1, 2]}}, "params": {"dims": [0]}}


class Machine:
    """A server that is killed and started again, on the same data folder."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._stack = contextlib.ExitStack()
        self.server: Server

    def start(self) -> None:
        running = beside(self._database, self._folder, WARPCALL_JOB_LEASE_S=LEASE_S)
        self.server = self._stack.enter_context(running)

    def kill(self) -> None:
        self.server.process.kill()
        self.stop()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was killed
            self._stack.close()

    def children(self, *words: str) -> list[psutil.Process]:
        """The processes below the server whose command lines have one of these words."""
        found = []
        with gone_is_gone():
            for child in psutil.Process(self.server.process.pid).children(recursive=True):
                with gone_is_gone():
                    if any(word in " ".join(child.cmdline()) for word in words):
                        found.append(child)
        return found


class Callers:
    """Threads that call the servers until they are stopped.

    Attributes:
        seen: how many calls ended in each way.
        wrong: answers that are not those of the op, and calls without an end in time.
    """

    def __init__(self, machines: list[Machine], count: int = 2) -> None:
        self.seen, self.wrong = Counter[str](), list[str]()
        self._machines, self._stop = machines, threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LATE_S)

    def _call(self, seed: int) -> None:
        chooser = random.Random(seed)
        while not self._stop.wait(0.02):
            url, began = chooser.choice(self._machines).server.url, time.monotonic()
            try:
                answer = httpx.post(
                    f"{url}/v1/kernels/permute",
                    json=WELL,
                    timeout=DEADLINE_S,
                    headers={"accept": "application/json"},
                )
            except httpx.TransportError as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen[str(answer.status_code)] += 1
                if answer.status_code == 200 and answer.json()["outputs"]["out"]["data"] != [1, 2]:
                    self.wrong.append(answer.text)
            if (took := time.monotonic() - began) > LATE_S:
                self.wrong.append(f"a call took {took:.1f} s")


def submitted(machines: list[Machine], key: str) -> str:
    """The id of a job that was accepted, perhaps at the second try."""
    found: list[str] = []

    def accepted() -> bool:
        for machine in machines:
            with contextlib.suppress(httpx.TransportError):
                cases = [{**CASE, "shape": [8, n]} for n in range(2, 8)]
                body = {**JOB, "cases": cases, "fresh": True}
                answer = httpx.post(
                    f"{machine.server.url}/v1/jobs",
                    json=body,
                    timeout=30,
                    headers={"idempotency-key": key},
                )
                if answer.status_code in (200, 201):
                    found.append(answer.json()["id"])
                    return True
        return False

    until(accepted, timeout_s=90)
    return found[0]


@pytest.mark.skipif(not KILLS, reason="WARPCALL_TEST_KILLS is not set")
@pytest.mark.timeout(300 + 30 * KILLS)
def test_nothing_is_lost_or_twice_while_processes_are_killed(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path)
    name = database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    (tmp_path / "continue_file").touch()
    machines = [Machine(database, tmp_path / letter) for letter in "abc"]
    for machine in machines:
        machine.start()
    callers, chooser = Callers(machines), random.Random(SEED)
    ended: dict[str, Any] = {}

    def all_ended() -> bool:
        for job in ids:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{machines[0].server.url}/v1/jobs/{job}", timeout=30)
                if answer.status_code == 200:
                    ended[job] = answer.json()
        return len(ended) == JOBS and all(j["state"] not in UNFINISHED for j in ended.values())

    try:
        ids = [submitted(machines, f"key-{n}") for n in range(JOBS)]
        for _ in range(KILLS):
            machine, victim = chooser.choice(machines), chooser.choice([*VICTIMS, "server", "cut"])
            if victim == "server":
                machine.kill()
                machine.start()
            elif victim == "cut":
                postgres.psql(cut)
            else:
                for process in machine.children(VICTIMS[victim])[:1]:
                    with gone_is_gone():
                        process.kill()
            time.sleep(chooser.uniform(*PAUSE_S))
        until(all_ended, f"jobs did not end: {ended}", timeout_s=180 + 10 * KILLS)
    finally:
        callers.stop()
        left = [child for machine in machines for child in machine.children("warpcall", "template")]
        for machine in machines:
            machine.stop()

    store = database.store()
    with store.read() as session:
        sql = session.connection().exec_driver_sql
        stored = sql("SELECT count(*) FROM jobs").scalar()
        events = sql("SELECT job_number, count(*), max(sequence) FROM job_events GROUP BY 1").all()
        cases = sql(
            "SELECT job_number, data::json->>'position', count(*) FROM job_events "
            "WHERE kind = 'case' GROUP BY 1, 2"
        ).all()
        ends = sql(
            "SELECT job_number, count(*) FROM job_events "
            "WHERE data::json->>'exit_class' IS NOT NULL GROUP BY 1"
        ).all()
    store.close()
    assert stored == len({*ids}) == JOBS
    assert all(count == last for _, count, last in events), "an event is lost or stored twice"
    assert all(count == 1 for *_, count in cases), "a case is stored twice"
    assert [count for _, count in ends] == [1] * JOBS
    assert {job["state"] for job in ended.values()} <= {"succeeded", "interrupted"}
    assert all(
        job["cases_done"] == job["cases_total"]
        for job in ended.values()
        if job["state"] == "succeeded"
    )
    assert callers.wrong == []
    assert callers.seen["200"] > 0
    until(lambda: not any(map(lives, left)), "processes are left")
