"""Jobs that misbehave, and what is killed: each ends as it should, nothing of it stays, calls go
on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
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
    submit,
)
from tests.service.requests import well
from tests.suspended import suspend
from tests.waiting import lives, until
from warpcall_bench.jobs.tables import Job as Row
from warpcall_bench.runs.messages import TAG_VARIABLE
from warpcall_service.nodes.server_identity import ServerIdentity

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CALL_WITHIN_S = 15.0
STALL_S = 12  # on a busy machine a job may take 6 s until its first progress
SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
    "WARPCALL_JOB_STALL_S": str(STALL_S),
    "WARPCALL_JOB_BLOCK_S": "2",
    "WARPCALL_JOB_MEMORY_BYTES": "1GiB",
    "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(ROOT)]),
}
CASES = [{**CASE, "shape": [8, n]} for n in range(9, 39)]
# A job that waits for CONTINUE_FILE: four cases are measured, and calls of the fifth one, with rows of 13, sleep.
WAITS: dict[str, Any] = {"implementations": ["wait"], "cases": CASES}


@pytest.fixture(scope="module")
def continue_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Once it is there, jobs of `wait` go on."""
    return tmp_path_factory.mktemp("data") / "continue_file"


@pytest.fixture(scope="module")
def server(continue_file: Path) -> Iterator[Server]:
    with running_server({**SETTINGS, "CONTINUE_FILE": str(continue_file)}) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with client(server) as http:
        yield http
        assert well(http).status_code == 200
        assert processes(server) == []


@pytest.mark.parametrize(
    ("implementation", "state", "exit_class", "detail"),
    [
        ("hang", "timed_out", "timeout", f"no progress for {STALL_S} s"),
        ("hang-when-timed", "timed_out", "timeout", "kept the device for more than 2 s"),
        ("allocate", "failed", "oom", ""),
        ("allocate-in-forks", "failed", "oom", "its processes together took more than"),
        ("leave", "failed", "killed", "exit status 3"),
        ("crash", "failed", "killed", "SIGSEGV"),
        ("wrong", "failed", "wrong_result", "no implementation"),
        ("fail", "failed", "error", "no implementation"),
    ],
)
def test_an_implementation_that_misbehaves_ends_its_job_and_nothing_else(
    implementation: str,
    state: str,
    exit_class: str,
    detail: str,
    server: Server,
    http: httpx.Client,
) -> None:
    lane = lane_pid(server)

    job = ended(http, submit(http, implementations=[implementation]))

    began = time.monotonic()
    assert well(http).status_code == 200
    assert time.monotonic() - began < CALL_WITHIN_S
    assert (job["state"], job["exit_class"]) == (state, exit_class), job
    assert detail in job["detail"]
    assert processes(server) == []
    assert lane_pid(server) == lane, "the lane has noticed nothing"


def test_a_job_has_the_times_of_those_that_are_right_and_leaves_no_process_behind(
    server: Server, http: httpx.Client, continue_file: Path
) -> None:
    job = submit(http, implementations=["fork", "wrong", "refuse", "wait"], cases=CASES[3:5])
    sleeper = next(p for p in with_its_sleeper(server) if p.name() == "sleep")

    continue_file.touch()
    done = ended(http, job)
    continue_file.unlink()

    found = {m["implementation"]: m for m in results(http, job)["measurements"][:3]}
    assert (done["state"], done["exit_class"]) == ("partial", "wrong_result")
    assert done["detail"] == (
        "wrong has no time in 2 of 2 cases: wrong_result in 2; "
        "refuse has no time in 2 of 2 cases: compile_error in 2"
    )
    assert {name: m["status"] for name, m in found.items()} == {
        "fork": "ok",
        "wrong": "wrong_result",
        "refuse": "compile_error",
    }
    assert found["fork"]["median_us"] > 0
    assert found["wrong"]["median_us"] is None
    assert not lives(sleeper)
    assert processes(server) == []


def test_a_cancelled_job_is_dead_at_once_and_keeps_what_it_measured(
    server: Server, http: httpx.Client
) -> None:
    job = submit(http, **WAITS, fresh=True)
    reached(http, job, lambda found: found["cases_done"] >= 1)
    running = [measurer(server), *processes(server)]

    http.post(f"/v1/jobs/{job['id']}/cancel")
    done = ended(http, job)

    assert not any(map(lives, running))
    assert (done["state"], done["exit_class"]) == ("cancelled", "cancelled")
    measured = results(http, job)["measurements"]
    assert len(measured) == done["cases_done"] >= 1
    assert {m["status"] for m in measured} == {"ok"}


def test_a_job_that_waits_is_cancelled_without_having_run(http: httpx.Client) -> None:
    first, second = submit(http, **WAITS, fresh=True), submit(http, fresh=True)

    done = http.post(f"/v1/jobs/{second['id']}/cancel").json()
    again = http.post(f"/v1/jobs/{second['id']}/cancel").json()
    http.post(f"/v1/jobs/{first['id']}/cancel")

    assert (done["state"], done["attempts"]) == ("cancelled", 0)
    assert again["finished_at"] == done["finished_at"]
    assert ended(http, first)["state"] == "cancelled"


def test_a_killed_process_interrupts_its_job_which_runs_again_once(
    server: Server, http: httpx.Client
) -> None:
    job = submit(http, **WAITS, fresh=True)
    reached(http, job, lambda found: found["cases_done"] >= 1)
    first = measurer(server)
    first.kill()
    reached(http, job, lambda found: found["attempts"] == 2)
    second = measurer(server)
    second.kill()
    done = ended(http, job)

    assert first.pid != second.pid
    assert (done["state"], done["exit_class"], done["attempts"]) == ("interrupted",) * 2 + (2,)
    assert states(http, job).count("interrupted") == 2
    measured = results(http, job)["measurements"]
    assert len({m["case"] for m in measured}) == len(measured) == done["cases_done"]


def test_a_job_is_not_blamed_for_a_server_that_stood_still(
    server: Server, http: httpx.Client
) -> None:
    job = submit(http, cases=CASES, fresh=True)
    reached(http, job, lambda found: found["state"] == "running")
    stopped = [psutil.Process(server.process.pid), *processes(server)]
    for process in stopped:
        suspend(process)  # as a container is paused
    time.sleep(STALL_S + 2)  # longer than the job may be quiet, or keep the device
    for process in stopped:
        process.resume()
        time.sleep(0.3)  # so that the server looks at the job before that goes on

    done = ended(http, job)

    assert (done["state"], done["attempts"]) == ("succeeded", 1)


def test_a_killed_guard_takes_the_job_with_it(server: Server, http: httpx.Client) -> None:
    job = submit(http, implementations=["fork", "wait"], cases=CASES[4:], fresh=True)
    before = with_its_sleeper(server)
    reaper = next(p for p in before if "warpcall_bench.runs.reaper" in p.cmdline())

    reaper.kill()
    reached(http, job, lambda found: found["attempts"] == 2)
    left = [process for process in before if lives(process)]
    http.post(f"/v1/jobs/{job['id']}/cancel")

    assert left == []
    assert ended(http, job)["state"] == "cancelled"


def with_its_sleeper(server: Server) -> list[psutil.Process]:
    """The processes of a job of `fork`, after the one that it leaves behind has become `sleep`."""
    found: list[psutil.Process] = []

    def sleeps() -> bool:
        found[:] = processes(server)
        with suppress(psutil.NoSuchProcess):
            return any(p.name() == "sleep" for p in found)
        return False

    until(sleeps, "no process sleeps")
    return found


def lane_pid(server: Server) -> int:
    return next(
        child.pid
        for child in psutil.Process(server.process.pid).children()
        if "warpcall_service.worker.main" in child.cmdline()
    )


def states(http: httpx.Client, job: Job) -> list[str]:
    return [event["data"]["state"] for event in events(http, job) if event["kind"] == "state"]


def test_a_killed_server_loses_no_job_and_no_case(sqlite: Database) -> None:
    keys = {user: sqlite.key(user, "bench") for user in ("alice", "bob", "carol")}
    settings = {**SETTINGS, **sqlite.settings, "CONTINUE_FILE": "/nowhere"}
    jobs: list[tuple[str, Job]] = []
    with doomed_server(settings) as server:
        with client(server, keys["alice"]) as http:
            jobs.append(("alice", submit(http, **WAITS)))
            reached(http, jobs[0][1], lambda found: found["cases_done"] >= 1)
        for user in ("alice", "bob", "carol"):
            with client(server, keys[user]) as http:
                jobs += [(user, submit(http, key=f"{user}-{i}", fresh=True)) for i in range(7)]
        with client(server, keys["carol"]) as http:
            before = http.get("/v1/jobs/queue").json()["entries"]
            done_before = before[0]["cases_done"]
        left = [measurer(server), *processes(server)]

    stray = stray_of(settings)
    with running_server(settings) as server, client(server, keys["alice"]) as http:
        first = reached(http, jobs[0][1], lambda found: found["attempts"] == 2)
        after = http.get("/v1/jobs/queue").json()["entries"]
        again = [submit(http, key=f"alice-{i}", fresh=True)["id"] for i in range(7)]
        listed = http.get("/v1/jobs").json()["jobs"]
        states_seen = states_so_far(http, jobs[0][1])
        measured = results(http, first)["measurements"]

    store = sqlite.store()
    with store.read() as session:
        row = session.get_one(Row, 1)
        put_back = row.state, row.attempts
    store.close()
    assert not any(map(lives, left))
    assert stray.wait(0) == -signal.SIGKILL, "what a killed reaper left is found by its tag"
    assert len(before) == len(after) == 22
    assert [e["id"] for e in after] == [e["id"] for e in before], "the order is as it was"
    users = [entry["user"] for entry in after]
    assert sorted(users[1:3]) == sorted(users[3:5]) == ["bob", "carol"]
    assert again == [job["id"] for user, job in jobs[1:] if user == "alice"], "nothing twice"
    assert len(listed) == 8
    assert states_seen.count("interrupted") == 1
    assert first["cases_done"] >= done_before
    assert len({m["case"] for m in measured}) == len(measured) >= done_before
    assert put_back == ("queued", 1), "a server that stops in good order puts its job back"


def stray_of(settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process as a job of that server, and its reaper, would have left it when both were killed."""
    earlier = ServerIdentity(Path(settings["WARPCALL_DATA_DIR"]))
    tag = f"{earlier.acquire()}/cpu/000000000000"
    earlier.release()
    return subprocess.Popen(["sleep", "3600"], env={**os.environ, TAG_VARIABLE: tag})


@contextmanager
def doomed_server(settings: dict[str, str]) -> Iterator[Server]:
    """A server that is killed at the end."""
    try:
        with running_server(settings) as server:
            yield server
            server.process.kill()
            server.process.wait()
    except RuntimeError as error:
        assert "ended with status -9" in str(error)  # noqa: PT017  # as it should


def states_so_far(http: httpx.Client, job: Job) -> list[str]:
    """Of a job that runs: the stream would go on."""
    found = []
    for event in events(http, job):
        if event["kind"] == "state":
            found.append(event["data"]["state"])
        if found[-2:] == ["queued", "preparing"] and "interrupted" in found:
            return found
    return found
