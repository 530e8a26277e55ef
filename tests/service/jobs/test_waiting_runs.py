"""Processes that wait for the next job of a lane: what they save, and what ends them."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.service.databases import Database
from tests.service.job_requests import Job, ended, measurer, processes, results, show, submit
from tests.service.uploads.requests import HANGING, Lab, running_lab, uploaded
from tests.waiting import lives, until
from warpcall.jobs import UNFINISHED

pytestmark = pytest.mark.slow
UPLOADS = "sandboxed" if shutil.which("bwrap") else "trusted"  # others are forks, without a sandbox
NUMBERS = itertools.count()  # of sources that differ
SOURCE = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"


@contextmanager
def waiting_lab(folder: Path, uploads: str = "trusted", wait_s: str = "600") -> Iterator[Lab]:
    """A server whose processes wait, and which has measured one upload."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    settings = {"WARPCALL_UPLOADS": uploads, "WARPCALL_WAITING_PROCESS_S": wait_s, **HANGING}
    with running_lab(database, "ann", **settings) as lab, lab.http("ann") as ann:
        until(lambda: ann.get("/readyz").json()["uploads"] == uploads)
        assert measured(ann)["state"] == "succeeded"
        yield lab


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with waiting_lab(tmp_path_factory.mktemp("data")) as lab:
        yield lab


@pytest.fixture
def lab(shared: Lab) -> Lab:
    """The server after a job with an upload, so that processes for uploads wait."""
    with shared.http("ann") as ann:
        assert measured(ann)["state"] == "succeeded"
    until(lambda: of_jobs(shared), "none wait for the next job")
    return shared


# It prints when its process was started, in seconds since the machine was.
TELLS = """
import os

def permute(x, dims):
    ticks = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
    print(int(ticks) / os.sysconf("SC_CLK_TCK"))
    return x.permute(dims).contiguous()
"""


def measured(http: httpx.Client) -> Job:
    """A job with a new upload, once it has ended."""
    upload = uploaded(http, f"# {next(NUMBERS)}\n{SOURCE}")
    job = ended(http, submit(http, implementations=["torch", upload["name"]]))
    if job["state"] == "succeeded":
        assert [one["status"] for one in results(http, job)["measurements"]] == ["ok", "ok"]
    return job


def of_jobs(lab: Lab) -> list[psutil.Process]:
    """The processes that wait for a job: a reaper, and what is below it."""
    found = [one for one in processes(lab.server) if "job_main" in " ".join(one.cmdline())]
    return found if any("runs.reaper" not in " ".join(one.cmdline()) for one in found) else []


def test_the_next_job_uses_the_processes_that_wait_and_others_wait_after_it(tmp_path: Path) -> None:
    with waiting_lab(tmp_path, UPLOADS) as lab, lab.http("ann") as ann:
        until(lambda: of_jobs(lab), "none wait for the next job")
        before = of_jobs(lab)
        upload = uploaded(ann, TELLS)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)

        job = ended(ann, submit(ann, implementations=["torch", upload["name"]]))
        (printed,) = ann.get(f"/v1/jobs/{job['id']}/printed").json()["printed"]
        assert float(printed["text"].split()[0]) < now, "it used a process that had waited"
        until(lambda: not any(map(lives, before)), "a process outlives its job")
        until(lambda: of_jobs(lab), "none wait for the job after it")

        after = of_jobs(lab)
        assert min(one.create_time() for one in after) > max(one.create_time() for one in before)
        below = psutil.Process(lab.server.process.pid).children(recursive=True)

    assert job["state"] == "succeeded"
    until(lambda: not any(map(lives, below)), "a process outlives the server")


@pytest.mark.parametrize("victim", ["runs.reaper", "programs.job_main"])
def test_a_job_is_measured_although_what_waited_for_it_was_killed(victim: str, lab: Lab) -> None:
    seen = of_jobs(lab)
    killed = next(
        one
        for one in seen
        if victim in " ".join(one.cmdline()[:4]) and "job_main" in " ".join(one.cmdline())
    )
    killed.kill()
    until(lambda: not lives(killed))

    with lab.http("ann") as ann:
        job = measured(ann)
    until(lambda: not any(map(lives, seen)), "a process is left")

    assert job["state"] == "succeeded"
    if victim == "runs.reaper":  # that of a killed process may not have ended yet, and is used then
        assert job["attempts"] == 1


def test_a_job_of_another_kind_gets_processes_of_its_own(lab: Lab) -> None:
    before = of_jobs(lab)

    with lab.http("ann") as ann:
        job = submit(ann, implementations=["hang"])
        until(lambda: not any(map(lives, before)), "those for uploads still wait, or run this job")
        measurer(lab.server)
        seen = show(ann, job)
        ann.post(f"/v1/jobs/{job['id']}/cancel")
        ended(ann, job)

    assert seen["state"] in UNFINISHED
    assert seen["attempts"] == 1


def test_processes_that_nothing_uses_are_ended(tmp_path: Path) -> None:
    with waiting_lab(tmp_path, wait_s="1") as lab:
        until(lambda: not processes(lab.server), "they still wait")
