"""A real server that serves calls only."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from demo.server import running_server
from tests.service.requests import well
from tests.template import ROOT

# The application without the benchmark platform, in a process that cannot import it.
WITHOUT_PLATFORM = """
import sys
sys.modules["warpcall_bench"] = None
from tests.app.harness import running_app
from tests.service.requests import well
with running_app(calls_only={calls_only}) as app, app.client() as http:
    print(well(http).status_code, http.get("/jobs").status_code, http.get("/v1/jobs").status_code)
"""


@pytest.mark.parametrize("calls_only", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_calls_are_served_where_the_platform_cannot_be_imported(calls_only: bool) -> None:
    program = WITHOUT_PLATFORM.format(calls_only=calls_only)

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.stderr, done.stdout) == ("", "200 404 404\n")


@pytest.mark.slow  # tests/app/calls/test_calls_only.py has the setting without a server
def test_the_setting_leaves_the_platform_out() -> None:
    with (
        running_server({"WARPCALL_CALLS_ONLY": "true"}) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        call, page, route = well(http), http.get("/jobs"), http.get("/v1/jobs")

    assert (call.status_code, page.status_code, route.status_code) == (200, 404, 404)
