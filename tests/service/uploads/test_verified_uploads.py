"""Verified uploads: how they are stored and described, and what jobs without a GPU say of them."""

from __future__ import annotations

import ast
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.databases import Database
from tests.service.job_requests import CASE, ended, results, submit
from tests.service.uploads.requests import PATH, Lab, running_lab, upload, uploaded
from tests.service.uploads.sources import TRITON
from tests.service.worker.processes import frames_of_job
from warpcall_bench.runs.messages import Task, Upload, version_of

pytestmark = pytest.mark.slow

LAUNCHES = {
    "sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
    "launches": [
        {
            "kernel": "_kernel",
            "grid": ["rows"],
            "arguments": {
                "x_ptr": "x",
                "out_ptr": "out",
                "rows": "rows",
                "columns": "columns",
                "BLOCK": "next_power_of_2(columns)",
            },
        }
    ],
}
CUDA = """
extern "C" __global__ void transpose(const float* x, float* out, int rows) {
    out[threadIdx.x] = x[threadIdx.x] * rows;
}
"""
CUDA_LAUNCHES = {
    "launches": [
        {
            "kernel": "transpose",
            "grid": [1],
            "block": [32],
            "arguments": ["x", "out", {"i32": "x.shape[0]"}],
        }
    ]
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    with running_lab(database, "ann") as running:
        yield running


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as client:
        yield client


def test_a_verified_upload_is_described_as_one(http: httpx.Client) -> None:
    added = uploaded(http, TRITON, name="described", verified=True, launches=LAUNCHES)
    details = http.get(f"{PATH}/ann/described").json()
    listed = {one["name"]: one for one in http.get(PATH).json()["implementations"]}

    for found in (added, details, listed["ann/described"]):
        assert (found["kind"], found["verified"], found["language"]) == ("verified", True, "python")
    assert details["launches"] == LAUNCHES
    verified: Any = {"language": "python", "launches": LAUNCHES}
    assert details["sha256"] == version_of("permute", "permute", TRITON, verified)
    page = http.get("/implementations/ann/described").text
    assert "verified" in page
    assert "next_power_of_2(columns)" in page


def test_what_makes_an_upload_a_verified_one_is_part_of_its_version(http: httpx.Client) -> None:
    changed = {**LAUNCHES, "sizes": {"rows": "x.shape[0]", "columns": "x.numel"}}
    versions = [
        uploaded(http, TRITON, name="versions", **fields)
        for fields in (
            {},
            {"verified": True},
            {"verified": True, "launches": LAUNCHES},
            {"verified": True, "launches": changed},
        )
    ]
    again = uploaded(http, TRITON, name="versions", verified=True, launches=LAUNCHES)

    assert [one["created"] for one in versions] == [True] * 4
    assert len({one["sha256"] for one in versions}) == 4
    assert versions[0]["sha256"] == version_of("permute", "permute", TRITON), "as older servers say"
    assert (versions[0]["kind"], versions[0]["verified"]) == ("uploaded", False)
    assert (again["created"], again["sha256"]) == (False, versions[2]["sha256"])
    details = http.get(f"{PATH}/ann/versions", params={"version": versions[1]["version"]}).json()
    assert (details["launches"], details["verified"]) == (None, True)


def test_a_declaration_is_bounded(http: httpx.Client) -> None:
    long = {**LAUNCHES, "sizes": {"rows": "x.shape[0]" + " " * (16 << 10)}}

    answer = upload(http, TRITON, name="bounded", verified=True, launches=long)

    assert (answer.status_code, answer.json()["field"]) == (413, "launches")
    assert "at most 16384 bytes as JSON" in answer.json()["detail"]


def test_a_verified_kernel_is_not_profiled(http: httpx.Client) -> None:
    uploaded(http, TRITON, name="profiled", verified=True)
    body = {
        "op": "permute",
        "implementations": ["ann/profiled"],
        "cases": [CASE],
        "precision": "quick",
        "profile": "torch",
    }

    answer = http.post("/v1/jobs", json=body)

    assert (answer.status_code, answer.json()["field"]) == (422, "profile")
    assert "ann/profiled is a verified kernel, which cannot be profiled" in answer.json()["detail"]


def test_cuda_is_stored_with_its_launches(http: httpx.Client) -> None:
    fields = {"verified": True, "language": "cuda", "launches": CUDA_LAUNCHES}
    found = uploaded(http, CUDA, name="transposed", **fields)
    page = http.get("/implementations/ann/transposed").text
    report = http.post(
        "/v1/compile-reports",
        json={"op": "permute", "implementation": "ann/transposed", "case": CASE, "gpu": "sm_90"},
    )

    assert (found["kind"], found["language"]) == ("verified", "cuda")
    assert "CUDA C++" in page
    assert "Registers, PTX and SASS" not in page
    assert (report.status_code, report.json()["field"]) == (422, "implementation")
    assert "CUDA C++" in report.json()["detail"]


PRINTS = TRITON.replace(
    "def permute(x, dims):\n", 'def permute(x, dims):\n    print("recorded", x.shape)\n'
)
READS = PRINTS.replace("    out =", "    assert x.sum() > 0\n    out =")
RAISES = "def permute(x, dims):\n    raise KeyError('a')\n"
TORCH = "def permute(x, dims):\n    return x.permute(dims).contiguous() + 1\n"
# The environment in which the author's code runs.
ASKS = TRITON.replace(
    "def permute(x, dims):\n",
    """def permute(x, dims):
    import glob, os
    found = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": glob.glob("/dev/nvidia*")}
    found["interprets"] = triton.knobs.runtime.interpret
    found["parent"] = open("/proc/self/cmdline").read().split(chr(0))[3]
    print(found)
""",
)


def test_a_job_without_a_gpu_inspects_a_verified_kernel(http: httpx.Client) -> None:
    names = [
        uploaded(http, source, name=name, verified=True)["name"]
        for name, source in (("prints", PRINTS), ("reads", READS), ("raises", RAISES))
    ]
    plain = uploaded(http, PRINTS, name="interpreted")["name"]

    job = ended(http, submit(http, implementations=["torch", *names, plain]))
    rows = {one["implementation"]: one for one in results(http, job)["measurements"]}
    printed = http.get(f"/v1/jobs/{job['id']}/printed").json()["printed"]
    page = http.get(f"/jobs/{job['id']}").text

    good = rows["ann/prints"]
    assert (good["status"], good["verified"], good["tags"]) == ("unchecked", True, [])
    assert good["error"] == (
        "compiled for sm_90 and inspected: 1 kernel; a verified kernel is checked and timed on a GPU "
        "only"
    )
    assert good["source_sha256"] == http.get(f"{PATH}/ann/prints").json()["sha256"]
    assert rows["ann/reads"]["status"] == "error"
    assert "(line 21): only launches of kernels" in rows["ann/reads"]["error"]
    assert rows["ann/raises"]["error"] == "KeyError: 'a'"
    assert "raise KeyError" in rows["ann/raises"]["traceback"]
    assert [rows[name]["verified"] for name in ("torch", plain)] == [False, False]
    assert (rows[plain]["status"], rows["torch"]["status"]) == ("ok", "ok")
    texts = {one["implementation"]: one["text"] for one in printed}
    assert texts["ann/prints"] == "recorded torch.Size([8, 8])\n"
    assert texts["ann/reads"] == "recorded torch.Size([8, 8])\n"
    assert "verified</a>" in page


def measured(folder: Path, **sources: str) -> dict[str, Any]:
    """Results of one small case and what was printed in it, by name of a verified upload."""
    uploads: list[Upload] = [
        {
            "name": f"ann/{name}",
            "op": "permute",
            "function": "permute",
            "source": source,
            "verified": True,
            "language": "python",
            "launches": None,
        }
        for name, source in sources.items()
    ]
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": uploads,
        "problem": None,
        "sandboxed": False,
        "op": "permute",
        "implementations": [one["name"] for one in uploads],
        "precision": "quick",
        "seed": 1,
        "cases": [(0, CASE), (1, {**CASE, "shape": [3, 5]})],
        "memory_bytes": 8 << 30,
        "threads": 1,
        "odd": [one["name"] for one in uploads],
    }
    frames = frames_of_job(task, folder)
    assert frames[-1] == ("ended", {"class": "ok", "detail": ""})
    rows = {
        (value["position"], one["name"]): one
        for kind, value in frames
        if kind == "result"
        for one in value["case"]["implementations"]
    }
    texts = {
        (value["position"], value["implementation"]): base64.b64decode(value["data"]).decode()
        for kind, value in frames
        if kind == "printed"
    }
    assert not any(kind == "odd" for kind, _ in frames), "nothing can be checked without a GPU"
    return {"rows": rows, "texts": texts}


@pytest.mark.usefixtures("forked_programs")
def test_the_author_s_code_runs_in_the_recorder_only(tmp_path: Path) -> None:
    found = measured(tmp_path, asks=ASKS, computes=TORCH)

    for position in (0, 1):
        assert found["rows"][position, "ann/asks"]["status"] == "unchecked"
        said = ast.literal_eval(found["texts"][position, "ann/asks"])
        assert said == {
            "visible": "",
            "devices": [],
            "interprets": False,
            "parent": "warpcall_bench.programs.record_main",
        }
        refused = found["rows"][position, "ann/computes"]
        assert (refused["status"], refused["traceback"]) == ("error", None)
        assert "only launches of kernels" in refused["error"]
        assert refused["verified"]
    assert list(tmp_path.iterdir()) == [], "the sources were deleted"


@pytest.mark.parametrize(
    ("source", "launches", "error", "field"),
    [
        (CUDA.replace("* rows", "* row"), CUDA_LAUNCHES, "row", "source"),
        (CUDA.replace("transpose", "other"), CUDA_LAUNCHES, "transpose", "launches"),
        (CUDA, {"launches": [{**CUDA_LAUNCHES["launches"][0], "block": []}]}, "block", "launches"),
        (CUDA, LAUNCHES, "must be that of kernels in CUDA C++", "launches"),
        (
            "__device__ float kept;" + CUDA.replace("* rows", "* rows + (kept += 1)"),
            CUDA_LAUNCHES,
            "kept",
            "source",
        ),
    ],
    ids=["typo", "name", "declaration", "triton", "state"],
)
def test_wrong_cuda_is_refused_when_it_is_uploaded(
    source: str, launches: object, error: str, field: str, http: httpx.Client
) -> None:
    fields = {"verified": True, "language": "cuda", "launches": launches}

    answer = upload(http, source, name="wrong", **fields)

    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert error in answer.json()["detail"]


def test_a_job_without_a_gpu_compiles_cuda(http: httpx.Client) -> None:
    fields = {"verified": True, "language": "cuda", "launches": CUDA_LAUNCHES}
    uploaded(http, CUDA, name="compiled", **fields)

    job = ended(http, submit(http, implementations=["torch", "ann/compiled"]))

    _, row = results(http, job)["measurements"]
    assert (row["status"], row["verified"]) == ("unchecked", True)
    assert row["error"].startswith("compiled for sm_90 and inspected: 1 kernel; ")
