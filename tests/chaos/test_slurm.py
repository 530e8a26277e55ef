"""The script for Slurm, with a real Slurm: servers in two allocations of one machine at a time."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.databases import Database, new_postgresql, postgres_cluster
from tests.service.job_requests import BRIEF, ended, reached, submit
from tests.service.jobs.test_two_servers import WAITS, measured_once, states
from tests.slurm import Slurm, needs_slurm, slurm_cluster
from tests.waiting import until_lasting as until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launchers/slurm/warpcall.sbatch"
LISTENS = re.compile(r"Warpcall listens on (http://[\d.:]+)")
# One minute, and no SIGTERM before its end: the script's would come at once.
BRIEF_TIME = ("--array=1", "--time=1", "--signal=B:CONT@1")
SMALL = ("--cpus-per-task=1", "--mem=1M")

pytestmark = [needs_slurm, pytest.mark.timeout(300), pytest.mark.slow]


class Allocation:
    """A job of Slurm that runs the script.

    Attributes:
        id: of Slurm's job.
    """

    def __init__(
        self, slurm: Slurm, database: Database, folder: Path, *options: str, margin_s: int
    ) -> None:
        """Submit the script. Its server ends `margin_s` before the allocation does."""
        self._slurm = slurm
        here = {k: v for k, v in os.environ.items() if not k.startswith("WARPCALL_")}
        own = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(ROOT)]),
            "WARPCALL_HOST": "127.0.0.1",
            "WARPCALL_DEVICES": "cpu",
            "WARPCALL_ARENA_BYTES": "16MiB",
            "WARPCALL_DRAIN_TIMEOUT_S": "1",
            "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
            "CONTINUE_FILE": str(folder / "continue_file"),
            "MARGIN_S": str(margin_s),
        }
        command = ("sbatch", "--parsable", f"--output={folder}/%A.log", *SMALL, *options)
        environment = {**here, **database.settings, **own}
        self.id = slurm(*command, str(SCRIPT), environment=environment).strip()
        self._log = folder / f"{self.id}.log"

    @property
    def log(self) -> str:
        """What its server has written."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def state(self) -> str:
        """Slurm's state of it, such as RUNNING."""
        return self._slurm.states().get(self.id, "unknown")

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A client of its server, once that is ready."""
        until(lambda: LISTENS.search(self.log) or self.state not in ("PENDING", "RUNNING"))
        found = LISTENS.search(self.log)
        assert found, self.log
        with httpx.Client(base_url=found[1], timeout=30) as http:
            yield http


def nodes(http: httpx.Client) -> dict[str, Any]:
    """State of each server, by its id."""
    return {node["id"]: node["state"] for node in http.get("/v1/nodes").json()["nodes"]}


def own_id(http: httpx.Client) -> str:
    return str(http.get("/v1/nodes").json()["node"])


def test_jobs_of_an_allocation_that_ends_go_on_in_another(tmp_path: Path) -> None:
    with slurm_cluster() as slurm, postgres_cluster() as postgres:
        database = new_postgresql(postgres, tmp_path)

        second = Allocation(slurm, database, tmp_path, margin_s=300)
        with second.client() as http:
            other = own_id(http)
            database.command("drain", other)  # so that the first allocation gets the job
            until(lambda: nodes(http) == {other: "draining"})
            first = Allocation(slurm, database, tmp_path, *BRIEF_TIME, margin_s=10)
            until(lambda: "alive" in nodes(http).values())
            (gone,) = nodes(http).keys() - {other}
            job = submit(http, **WAITS)
            measured = reached(http, job, lambda found: found["cases_done"] == 1)
            side_by_side = first.state, second.state
            database.command("drain", other, "--off")
            until(lambda: nodes(http)[gone] == "stopped")
            reached(http, job, lambda found: found["node"] == other)
            (tmp_path / "continue_file").touch()
            done = ended(http, job)
            states(http, done)
            once = measured_once(http, done)

            over = first.state
            (tmp_path / "continue_file").unlink()
            job = submit(http, **WAITS, fresh=True)
            reached(http, job, lambda found: found["cases_done"] == 1)
        third = Allocation(slurm, database, tmp_path, margin_s=300)
        with third.client() as http:
            slurm("scancel", second.id)  # as at a preemption: SIGTERM to all its processes
            until(lambda: second.state == "CANCELLED")
            (tmp_path / "continue_file").touch()
            cancelled = ended(http, job)
            states(http, cancelled)
            cancelled_once = measured_once(http, cancelled)

    assert side_by_side == ("RUNNING", "RUNNING")
    assert measured["node"] == gone
    assert (done["state"], done["attempts"], once) == ("succeeded", 1, True)
    assert over == "COMPLETED"
    assert "its time is over: the server stops" in first.log
    assert (cancelled["state"], cancelled["attempts"], cancelled_once) == ("succeeded", 1, True)
    assert "SIGTERM: the server stops" in second.log
    for allocation in (first, second, third):
        assert "the server has stopped" in allocation.log
