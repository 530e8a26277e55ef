"""A real server: a job of many candidates waits while another user's short job runs, and loses nothing by it.

The batch runs in real sandboxes. The other jobs do not: what is started in a sandbox imports torch, and what
waits, is cancelled and is killed is the same process outside of it.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from demo.server import stop
from tests.service.databases import Database
from tests.service.job_requests import CASE, Job, ended, events, reached, results, show, submit
from tests.service.jobs.test_two_servers import beside
from tests.service.uploads.requests import Lab, uploaded
from tests.waiting import until

pytestmark = pytest.mark.slow
SANDBOXED = "sandboxed" if shutil.which("bwrap") else "trusted"
BATCH = "/v1/evaluations/batch"
# Its job lasts until a test lets it end soon, by a file, and takes no time from others. It is not slow in
# odd cases, which a job of a new version has first.
SLOW = """
import os
import time

def permute(x, dims):
    time.sleep({seconds} if x.shape == (8, 8) and not os.path.exists({file!r}) else 0.0)
    return x.permute(dims).contiguous()
"""
RUN = ["queued", "preparing", "waiting_gpu", "running"]
END = ["finalizing", "succeeded"]
WALL_S = 600


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path)})


@contextmanager
def lab_of(database: Database, keys: Mapping[str, str], uploads: str = "trusted") -> Iterator[Lab]:
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    with beside(database, folder, WARPCALL_UPLOADS=uploads) as server:
        lab = Lab(server, keys)
        with lab.http("ann") as ann:
            until(lambda: ann.get("/readyz").json()["uploads"] == uploads)
        yield lab


@pytest.fixture
def keys(database: Database) -> Mapping[str, str]:
    return {user: database.key(user, "upload") for user in ("ann", "bob")}


@pytest.fixture
def lab(database: Database, keys: Mapping[str, str]) -> Iterator[Lab]:
    with lab_of(database, keys) as lab:
        yield lab


def slow(number: int, seconds: float = 0.1, file: Path = Path("/nowhere")) -> str:
    return SLOW.format(seconds=seconds, file=str(file)) + f"# {number}\n"


def jobs_of(http: httpx.Client, user: str) -> list[Job]:
    return [job for job in http.get("/v1/jobs").json()["jobs"] if job["user"] == user]


def is_running(job: Job) -> bool:
    return bool(job["state"] == "running")


def both(
    ann: httpx.Client, bob: httpx.Client, file: Path, anns: Path | None = None, **fields: Any
) -> tuple[Job, Job]:
    """A job of ann's that waits for one of bob's, which has begun to be timed.

    Args:
        file: lets both jobs end soon, once it is there.
        anns: takes its place for ann's.
    """
    # Ann's lasts half a minute without the file, in which bob's comes on a busy machine, too.
    seconds = 0.1 if anns else 0.3
    sources = [slow(n, seconds, anns or file) for n in range(2)]
    names = [uploaded(ann, one, name=f"slow-{n}")["name"] for n, one in enumerate(sources)]
    name = uploaded(bob, slow(0, 0.5, file), name="bobs")["name"]
    job = submit(ann, implementations=["torch", *names], **fields)
    job = reached(ann, job, is_running, passes=False)
    short = submit(bob, implementations=["torch", name])
    short = reached(bob, short, is_running, passes=False)
    assert show(ann, job)["state"] == "running"
    return job, short


def times_of(found: list[dict[str, Any]], state: str) -> str:
    (at,) = [one["at"] for one in found if one["data"].get("state") == state]
    return str(at)


def test_a_job_of_another_user_runs_in_the_middle_of_a_batch(
    database: Database, keys: Mapping[str, str]
) -> None:
    sources = [{"source": slow(n)} for n in range(2)]
    body = {"op": "permute", "cases": [CASE], "baseline": "torch", "sources": sources}
    verdicts: list[dict[str, Any]] = []

    def evaluate(lab: Lab) -> None:
        with lab.http("ann") as ann, ann.stream("POST", BATCH, json=body, timeout=WALL_S) as lines:
            verdicts.extend(json.loads(line) for line in lines.iter_lines() if line)

    with (
        lab_of(database, keys, SANDBOXED) as lab,
        lab.http("ann") as ann,
        lab.http("bob") as bob,
    ):
        thread = threading.Thread(target=evaluate, args=(lab,))
        thread.start()
        until(lambda: jobs_of(ann, "ann"), timeout_s=WALL_S)
        (batch,) = jobs_of(ann, "ann")
        reached(ann, batch, is_running)
        short = ended(bob, submit(bob, implementations=["torch"]))
        during = show(ann, batch)
        batch = ended(ann, batch)
        thread.join(WALL_S)
        of_batch, of_short = list(events(ann, batch)), list(events(bob, short))

    assert (short["state"], batch["state"]) == ("succeeded", "succeeded")
    assert during["state"] == "running"
    assert batch["started_at"] < short["started_at"] < short["finished_at"] < batch["finished_at"]
    assert [one["data"]["state"] for one in of_batch if one["kind"] == "state"] == RUN + END
    assert sum(one["kind"] == "case" for one in of_batch) == 1
    assert [one["index"] for one in sorted(verdicts, key=lambda one: one["index"])] == [*range(2)]
    assert all(one["right"] and not one["failure"] for one in verdicts)
    first, last = times_of(of_short, "running"), times_of(of_short, "finalizing")
    between = [one for one in of_batch if first < one["at"] < last]
    assert between == [], "the batch does nothing while the other job has the device"
    assert any(one["at"] > last and one["kind"] == "progress" for one in of_batch)


def test_a_race_that_waited_has_a_whole_ranking(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with lab.http("ann") as ann, lab.http("bob") as bob:
        race, short = both(ann, bob, file, tmp_path / "none", race=True)
        file.touch()
        short, race = ended(bob, short), ended(ann, race)
        (case,) = results(ann, race)["cases"]

    assert (short["state"], race["state"]) == ("succeeded", "succeeded")
    assert short["finished_at"] < race["finished_at"]
    assert case["race"]["outcome"] == "winner"
    assert case["race"]["leader"] == "torch"


@pytest.mark.parametrize("which", ["that waits", "that passes"])
def test_each_of_both_jobs_can_be_cancelled_and_the_other_one_goes_on(
    which: str, lab: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    with lab.http("ann") as ann, lab.http("bob") as bob:
        long, short = both(ann, bob, file)
        http, cancelled = (ann, long) if which == "that waits" else (bob, short)
        assert http.post(f"/v1/jobs/{cancelled['id']}/cancel").status_code == 200
        cancelled = ended(http, cancelled)
        file.touch()
        other = ended(*((bob, short) if which == "that waits" else (ann, long)))

    assert (cancelled["state"], other["state"]) == ("cancelled", "succeeded")
    assert cancelled["finished_at"] < other["finished_at"]


def test_a_job_whose_process_is_killed_while_it_waits_runs_again(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "file"

    def measurers() -> list[psutil.Process]:
        below = psutil.Process(lab.server.process.pid).children(recursive=True)
        found = [one for one in below if "warpcall_bench.programs.job_main" in one.cmdline()[:4]]
        return sorted(found, key=lambda one: one.create_time())

    with lab.http("ann") as ann, lab.http("bob") as bob:
        long, short = both(ann, bob, file)
        measurers()[0].kill()
        file.touch()
        short, long = ended(bob, short), ended(ann, long)
        states = [one["data"]["state"] for one in events(ann, long) if one["kind"] == "state"]
        cases = sum(one["kind"] == "case" for one in events(ann, long))

    assert (short["state"], long["state"], cases) == ("succeeded", "succeeded", 1)
    assert states == [*RUN, "interrupted", *RUN, *END]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_server_that_starts_anew_runs_both_jobs(
    how: str, database: Database, keys: Mapping[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    killed = pytest.raises(RuntimeError) if how == "killed" else nullcontext()
    with killed, lab_of(database, keys) as lab:
        with lab.http("ann") as ann, lab.http("bob") as bob:
            long, short = both(ann, bob, file)
        if how == "killed":
            lab.server.process.send_signal(signal.SIGKILL)
            lab.server.process.wait()
        else:
            assert stop(lab.server.process) == 0
    file.touch()
    with lab_of(database, keys) as lab, lab.http("ann") as ann, lab.http("bob") as bob:
        short, long = ended(bob, short), ended(ann, long)
        counts = [
            sum(one["kind"] == "case" for one in events(http, job))
            for http, job in ((ann, long), (bob, short))
        ]

    assert (short["state"], long["state"], counts) == ("succeeded", "succeeded", [1, 1])
