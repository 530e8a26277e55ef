"""Nsight Compute and compile reports of jobs: of an uploaded softmax and of the shipped one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gpu.sandboxed import sandboxing
from tests.service.compile_reports.sources import SOFTMAX
from tests.service.job_requests import BRIEF, ended, submit
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import uploaded

pytestmark = [
    needs_bubblewrap,
    pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not installed"),
]

OP = "masked-softmax"
CASE = {"shape": [8192, 4096], "dtype": "BF16"}


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device, **BRIEF, WARPCALL_UPLOAD_CALL_S="10") as http:
        uploaded(http, SOFTMAX, op=OP, name="softmax")
        yield http


def profiled(http: httpx.Client, profile: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """The artefacts of a job by implementation and kind, and the names of its implementations."""
    timed = ["warpcall", "local/softmax"]
    job = submit(http, op=OP, cases=[CASE], implementations=timed, profile=profile, **more)
    job = ended(http, job)
    assert job["state"] == "succeeded", job
    names: list[str] = job["implementations"]
    listed = http.get(f"/v1/jobs/{job['id']}/artefacts").json()["artefacts"]
    found: dict[str, Any] = {}
    for one in listed:
        assert one["error"] == "", one
        answer = http.get(f"/v1/jobs/{job['id']}/artefacts/{one['name']}")
        found[f"{one['implementation']} {one['kind']}"] = answer
    return found, names


def test_nsight_compute_says_what_limits_an_uploaded_and_a_shipped_softmax(
    http: httpx.Client,
) -> None:
    found, names = profiled(http, "ncu")

    for name in names:
        text, report = found[f"{name} ncu-text"].text, found[f"{name} ncu-report"].content
        assert f"{name}, by Nsight Compute\n\n" in text
        for part in ("GPU Speed Of Light Throughput", "Launch Statistics", "Occupancy"):
            assert f"Section: {part}" in text
        assert text.count("Section: Launch Statistics") == 1, "it launches one kernel"
        assert "==ERROR==" not in text
        assert len(report) > 10_000


def test_one_launch_of_one_kernel_is_profiled_with_the_metrics_that_were_asked(
    http: httpx.Client,
) -> None:
    options = {"kernels": "softmax", "launch": 1, "sections": ["LaunchStats"]}
    options |= {"metrics": ["dram__bytes_read.sum"]}

    found, names = profiled(http, "ncu", profile_options=options)

    for name in names:
        text = found[f"{name} ncu-text"].text
        assert text.count("dram__bytes_read.sum") == 1
        assert text.count("Section: Launch Statistics") == 1
        assert "Section: Occupancy" not in text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kernels": "no_such_kernel"}, "no launch of a kernel that matches 'no_such_kernel'"),
        ({"launch": 77}, "its call had no launch number 77"),
        ({"sections": ["NoSuchSection"]}, "NoSuchSection"),
        ({"metrics": ["no_such_metric.sum"]}, "no_such_metric"),
    ],
)
def test_what_nsight_compute_refuses_is_said_in_a_sentence(
    http: httpx.Client, options: dict[str, Any], why: str
) -> None:
    asked: dict[str, Any] = {"op": OP, "cases": [CASE], "profile": "ncu"}
    asked["implementations"] = ["warpcall"]

    job = ended(http, submit(http, **asked, profile_options=options))

    assert job["state"] == "succeeded", job
    (one,) = http.get(f"/v1/jobs/{job['id']}/artefacts").json()["artefacts"]
    assert why in one["error"], one


def test_a_trace_has_a_table_of_its_top_kernels(http: httpx.Client) -> None:
    found, names = profiled(http, "torch")

    for name in names:
        table = found[f"{name} torch-kernels"].json()
        (kernel,) = (one for one in table["kernels"] if "softmax" in one["name"])
        assert (table["what"], table["calls"], kernel["launches"]) == ("kernels", 3, 3)
        assert kernel["share"] > 0.9
        assert 10 < kernel["mean_us"] < 1000


def test_a_job_reports_the_kernels_that_it_launches(http: httpx.Client) -> None:
    found, names = profiled(http, "compile")

    for name in names:
        report = found[f"{name} compile-report"].json()
        (kernel,) = report["kernels"]
        assert (report["op"], report["implementation"]) == (OP, name)
        assert kernel["launches"] == 1
        assert 0 < kernel["registers"] <= 255
        assert {n for n, text in kernel["texts"].items() if text["text"]} == {
            "ttir", "ttgir", "ptx", "sass",
        }  # fmt: skip
        without_gpu = http.post(
            "/v1/compile-reports",
            json={
                "op": OP,
                "case": CASE,
                "gpu": report["gpu"],
                "implementation": name,
                "texts": [],
            },
            timeout=60,
        ).json()
        (same,) = without_gpu["kernels"]
        assert same["registers"] == kernel["registers"]
        assert same["name"] == kernel["name"]
