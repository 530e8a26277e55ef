"""A server that serves calls only, without the benchmark platform."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service.requests import well

BROWSER = {"accept": "text/html"}
OF_THE_PLATFORM = ("/", "/jobs", "/kernels", "/docs", "/static/app.js", "/share/x")


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running_app(calls_only=True) as running:
        yield running


def test_a_call_is_answered(http: httpx.Client) -> None:
    answer = well(http)

    assert (answer.status_code, answer.json()["outputs"]["out"]["data"]) == (200, [2, 1, 0])


@pytest.mark.parametrize("path", OF_THE_PLATFORM)
def test_there_are_no_pages(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers=BROWSER)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("name", ["jobs", "implementations", "problems", "monitors", "shared/x"])
def test_there_are_no_routes_of_jobs_and_uploads(http: httpx.Client, name: str) -> None:
    assert http.get(f"/v1/{name}").status_code == 404
    assert http.post(f"/v1/{name}", json={}).status_code == 404


def test_the_server_is_ready_and_runs_no_uploads(http: httpx.Client) -> None:
    found = http.get("/readyz").json()

    assert (found["status"], found["uploads"]) == ("ready", "off")


def test_openapi_describes_calls_only(http: httpx.Client) -> None:
    found = http.get("/openapi.json").json()

    assert "/v1/kernels/permute" in found["paths"]
    assert [path for path in found["paths"] if path.startswith(("/v1/jobs", "/v1/monitors"))] == []
    assert "webhooks" not in found
    assert "JobRequest" not in found["components"]["schemas"]


def test_metrics_are_of_calls_only(http: httpx.Client) -> None:
    text = http.get("/metrics").text

    assert "warpcall_lane_ready" in text
    assert "warpcall_jobs_queued" not in text
