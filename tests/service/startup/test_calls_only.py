"""A real server that serves calls only."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from tests.servers import running_server
from tests.service.requests import well
from tests.template import ROOT

# The application without the benchmark platform, in a process that cannot import it.
WITHOUT_PLATFORM = """
import sys
sys.modules["warpcall_bench"] = None
from tests.app.harness import running_app
from tests.service.requests import well
for calls_only in (False, True):
    with running_app(calls_only=calls_only) as app, app.client() as http:
        print(well(http).status_code, *(http.get(path).status_code for path in ("/jobs", "/v1/jobs")))
"""


@pytest.mark.slow
def test_calls_are_served_where_the_platform_cannot_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLATFORM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.stderr, done.stdout) == ("", 2 * "200 404 404\n")


@pytest.mark.slow  # tests/app/calls/test_calls_only.py has the setting without a server
def test_the_setting_leaves_the_platform_out() -> None:
    with (
        running_server({"WARPCALL_CALLS_ONLY": "true"}) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        call, page, route = well(http), http.get("/jobs"), http.get("/v1/jobs")

    assert (call.status_code, page.status_code, route.status_code) == (200, 404, 404)
