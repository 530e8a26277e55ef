"""compute-sanitizer over uploads of jobs: what it finds in kernels that are wrong, and in one that is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gpu.sandboxed import sandboxing
from tests.service.job_requests import BRIEF, ended, results, submit
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import uploaded
from warpcall_bench.artefacts.tools import CUDA

THERE = shutil.which("compute-sanitizer") or any(
    Path(folder, "compute-sanitizer").exists() for folder in CUDA
)
pytestmark = [
    needs_bubblewrap,
    pytest.mark.skipif(not THERE, reason="compute-sanitizer is not installed"),
]

CASE = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
# The result has 64 elements, 256 bytes. With the mask `at < 128` the kernel writes as many behind it, into what
# torch's pool has rounded up to 512 bytes: the result is right, and only the sanitizer sees it.
COPY = """
import torch, triton
import triton.language as tl

@triton.jit
def _copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < 64), mask=at < n)

def permute(x, dims):
    x = x.permute(dims).contiguous()
    out = torch.empty_like(x)
    _copy[(1,)](x, out, {n}, BLOCK=256)
    return out
"""
# Each thread reads what its neighbour in another warp has written, without a barrier between.
RACES = """
import torch

SOURCE = r'''
extern "C" __global__ void shifted(float* out) {
    __shared__ float kept[64];
    kept[threadIdx.x] = out[threadIdx.x];
    out[threadIdx.x] = out[threadIdx.x] + 0.0f * kept[(threadIdx.x + 32) % 64];
}
'''
shifted = None

def permute(x, dims):
    global shifted
    if shifted is None:
        shifted = torch.cuda._compile_kernel(SOURCE, "shifted")
    out = x.permute(dims).contiguous()
    shifted((1, 1, 1), (64, 1, 1), (out,))
    return out
"""


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device, **BRIEF, WARPCALL_UPLOAD_CALL_S="10") as http:
        uploaded(http, COPY.format(n=64), name="right")
        uploaded(http, COPY.format(n=128), name="beyond")
        uploaded(http, RACES, name="races")
        yield http


@pytest.fixture(scope="module")
def rows(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """The rows of a job that checks all of them, by implementation."""
    names = [f"local/{name}" for name in ("right", "beyond", "races")]
    asked: dict[str, Any] = {"op": "permute", "cases": [CASE], "precision": "check"}
    job = ended(http, submit(http, **asked, implementations=names, sanitize=True))
    found = {row["implementation"]: row for row in results(http, job)["measurements"]}
    for artefact in http.get(f"/v1/jobs/{job['id']}/artefacts").json()["artefacts"]:
        assert artefact["error"] == "", artefact
    return found


def test_a_right_kernel_has_no_errors_and_no_races(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["local/right"]["status"] == "ok"
    assert rows["local/right"]["sanitizer"]["memcheck"] == "0 errors"
    assert rows["local/right"]["sanitizer"]["racecheck"].startswith("0 hazards")


def test_a_write_behind_the_end_is_found_with_its_kernel(rows: dict[str, dict[str, Any]]) -> None:
    said = rows["local/beyond"]["sanitizer"]["memcheck"]

    assert rows["local/beyond"]["status"] == "ok", "nothing else sees it"
    assert "errors, first: Invalid __global__ write of size" in said
    assert "_copy" in said
    assert ".py:" in said, "Triton's line"


def test_a_race_in_shared_memory_is_found(rows: dict[str, dict[str, Any]]) -> None:
    said = rows["local/races"]["sanitizer"]["racecheck"]

    assert not said.startswith(("0 ", "not run"))
    assert "shifted" in said
