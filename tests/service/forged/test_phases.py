"""Each phase of a run ends in time, whatever its processes say and do, and calls go on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.servers import Server, running_server
from tests.service.forged.test_forged_frames import SETTINGS
from tests.service.job_requests import client, ended, processes, reached, submit
from tests.service.requests import well
from warpcall_bench.runs.runner import ENDED_S

pytestmark = pytest.mark.slow

STALL_S = 8


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server({**SETTINGS, "WARPCALL_JOB_STALL_S": str(STALL_S)}) as running:
        yield running


def test_a_process_that_has_said_its_end_is_ended(server: Server) -> None:
    with client(server) as http:
        job = submit(http, implementations=["stay"])
        reached(http, job, lambda found: found["state"] == "finalizing")
        began = time.monotonic()
        done = ended(http, job)

        assert (done["state"], done["detail"]) == ("failed", "all is done")
        assert time.monotonic() - began < ENDED_S + 15
        assert processes(server) == []


def test_to_repeat_a_phase_is_no_progress(server: Server) -> None:
    with client(server) as http:
        job = submit(http, implementations=["stall"])
        reached(http, job, lambda found: found["state"] == "preparing")
        assert well(http).status_code == 200, "the device serves calls meanwhile"
        done = ended(http, job)

        assert (done["state"], done["exit_class"]) == ("timed_out", "timeout")
        assert done["detail"] == f"it made no progress for {STALL_S} s"
        assert processes(server) == []
