"""An upload whose call does not end costs its own row, however long a job may keep the device."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.servers import running_server
from tests.service.job_requests import BRIEF, CASE, client, ended, results, submit
from tests.service.uploads.requests import uploaded

pytestmark = pytest.mark.slow

HANGS_LATER = """
import time
calls = 0

def permute(x, dims):
    global calls
    calls += 1
    if calls > 20:
        time.sleep(600)
    return x.permute(dims).contiguous()
"""


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = {
        **BRIEF,
        "WARPCALL_UPLOADS": "trusted",
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_UPLOAD_CALL_S": "3",
        "WARPCALL_JOB_BLOCK_S": "1",
    }
    with running_server(settings) as running, client(running) as http:
        yield http


def test_a_call_that_hangs_under_the_lease_ends_its_row_and_not_the_job(
    http: httpx.Client,
) -> None:
    uploaded(http, HANGS_LATER, name="hangs")

    job = ended(http, submit(http, cases=[CASE], implementations=["torch", "local/hangs"]))

    rows = {row["implementation"]: row for row in results(http, job)["measurements"]}
    assert (job["state"], job["exit_class"]) == ("partial", "timeout"), job
    assert rows["torch"]["status"] == "ok"
    assert rows["torch"]["median_us"] > 0
    assert rows["local/hangs"]["status"] == "timeout"
    assert rows["local/hangs"]["error"].startswith("a timed call did not end within 3")
