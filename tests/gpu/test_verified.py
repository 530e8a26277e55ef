"""Verified kernels through a real server, its sandbox and its jobs, on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gpu.sandboxed import sandboxing
from tests.service.job_requests import reached, results, submit
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import uploaded
from warpcall.jobs import UNFINISHED

pytestmark = needs_bubblewrap

LONG = {"shape": [4096, 4096], "dtype": "BF16", "params": {"dims": [1, 0]}}
MOST = 6  # of these uploads in a job, which may have 8 implementations
SHORT = {**LONG, "shape": [512, 520]}

HEAD = """
import torch
import triton
import triton.language as tl

@triton.jit
def transpose(x, y, rows, columns, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < rows) & (j < columns)
    tl.store(y + i + j * rows, tl.load(x + i * columns + j, mask=inside), mask=inside)

def run(x, side=64):
    rows, columns = x.shape
    y = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, side), triton.cdiv(columns, side))
    transpose[grid](x, y, rows, columns, side, num_warps=8)
    return y
"""
RIGHT = {
    "plain": """
def permute(x, dims):
    return run(x)
""",
    # Two launches with memory between them, and a fill.
    "twice": """
def permute(x, dims):
    count = torch.zeros(4, dtype=torch.int32, device=x.device)
    return run(run(run(x)))
""",
    "tuned": """
@triton.autotune([triton.Config({"SIDE": side}, num_warps=warps) for side in (32, 64, 128)
                  for warps in (4, 8)], key=["rows", "columns"])
@triton.jit
def tuned(x, y, rows, columns, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < rows) & (j < columns)
    tl.store(y + i + j * rows, tl.load(x + i * columns + j, mask=inside), mask=inside)

def permute(x, dims):
    rows, columns = x.shape
    y = x.new_empty((columns, rows))
    grid = lambda meta: (triton.cdiv(rows, meta["SIDE"]), triton.cdiv(columns, meta["SIDE"]))
    tuned[grid](x, y, rows, columns)
    return y
""",
    "shipped": """
import warpcall_kernels

def permute(x, dims):
    return warpcall_kernels.ops()["permute"].function(x, dims)
""",
}
# What each must end as: the status, and what its message says.
WRONG = {
    "behind": (
        """
@triton.jit
def behind(y, size):
    i = tl.arange(0, 64)
    tl.store(y + size + i, i.to(y.dtype.element_ty))

def permute(x, dims):
    y = run(x)
    behind[(1,)](y, y.numel())
    return y
""",
        "wrong_result",
        "a kernel has written 128 bytes behind out",
    ),
    "far": (
        """
@triton.jit
def far(y, size):
    tl.store(y + size, 1.0)

def permute(x, dims):
    y = run(x)
    far[(1,)](y, 1 << 42)
    return y
""",
        "cuda_error",
        "illegal memory access",
    ),
    "endless": (
        """
@triton.jit
def endless(flag):
    while tl.atomic_add(flag, 0) == 0:
        pass

def permute(x, dims):
    endless[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return run(x)
""",
        "timeout",
        "did not end within",
    ),
    "trap": (
        """
@triton.jit
def trap(y):
    tl.inline_asm_elementwise("trap; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)

def permute(x, dims):
    y = run(x)
    trap[(1,)](y)
    return y
""",
        "cuda_error",
        "CUDA error",
    ),
    "prints": (
        """
@triton.jit
def prints(y):
    tl.device_print("here", tl.program_id(0))

def permute(x, dims):
    y = run(x)
    prints[(1,)](y)
    return y
""",
        "error",
        "vprintf",
    ),
    "reads": (
        """
def permute(x, dims):
    return run(x) if x.sum().item() < 1e9 else run(x, 32)
""",
        "error",
        "sum",
    ),
    "returns-input": (
        """
def permute(x, dims):
    return x.permute(dims)
""",
        "error",
        "a view computes nothing",
    ),
    "wrong-values": (
        """
def permute(x, dims):
    return torch.zeros(x.shape[::-1], dtype=x.dtype, device=x.device)
""",
        "wrong_result",
        "differ",
    ),
}
CUDA = """
#include <cuda_bf16.h>

extern "C" __global__ void transpose(const __nv_bfloat16* x, __nv_bfloat16* y, int rows, int columns) {
    extern __shared__ __nv_bfloat16 tile[];  // 32 rows of 33
    int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
    for (int k = 0; k < 32; k += 8)
        if (i + k < rows && j < columns)
            tile[(threadIdx.y + k) * 33 + threadIdx.x] = x[(size_t)(i + k) * columns + j];
    __syncthreads();
    i = blockIdx.y * 32 + threadIdx.x, j = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (i < rows && j + k < columns)
            y[(size_t)(j + k) * rows + i] = tile[threadIdx.x * 33 + threadIdx.y + k];
}
"""
LAUNCHES: dict[str, Any] = {
    "sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
    "launches": [
        {
            "kernel": "transpose",
            "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)"],
            "block": [32, 8],
            "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}],
            "shared_bytes": 200 << 10,
        }
    ],
}


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device) as http:
        yield http


def measured(
    http: httpx.Client, names: list[str], case: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    job = submit(http, implementations=["warpcall", *names], cases=[case])
    job = reached(http, job, lambda found: found["state"] not in UNFINISHED, wait_s=240)
    found = results(http, job)
    return {row["implementation"].rpartition("/")[2]: row for row in found["measurements"]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [LONG, SHORT], ids=["long", "short"])
def test_right_kernels_are_timed(http: httpx.Client, case: dict[str, Any]) -> None:
    for name, source in RIGHT.items():
        uploaded(http, HEAD + source, name=name, verified=True)
    uploaded(http, CUDA, name="cuda", language="cuda", launches=LAUNCHES, verified=True)
    uploaded(http, HEAD + RIGHT["plain"], name="unverified")
    names = [*RIGHT, "cuda", "unverified"]

    found = measured(http, [f"local/{name}" for name in names], case)

    for name in names:
        row = found[name]
        assert row["status"] == "ok", row
        assert row["verdict"] is not None
        assert row["verified"] is (name != "unverified")
    assert any("SIDE" in tag for tag in found["tuned"]["tags"])
    assert found["plain"]["method"] == found["unverified"]["method"]
    assert not found["warpcall"]["verified"]


@pytest.mark.timeout(600)
def test_wrong_kernels_have_no_time_and_harm_nobody(http: httpx.Client) -> None:
    for name, (source, _, _) in WRONG.items():
        uploaded(http, HEAD + source, name=name, verified=True)
    uploaded(http, HEAD + RIGHT["plain"], name="among", verified=True)

    found: dict[str, dict[str, Any]] = {}
    for begin in range(0, len(WRONG), MOST):
        names = [*WRONG][begin : begin + MOST]
        found |= measured(http, [*(f"local/{name}" for name in names), "local/among"], SHORT)

    ended = {name: (found[name]["status"], found[name]["error"]) for name in WRONG}
    for name, (_, status, words) in WRONG.items():
        assert ended[name][0] == status, ended
        assert re.search(words, ended[name][1]), ended
        assert found[name]["verdict"] is None
    assert found["among"]["status"] == found["warpcall"]["status"] == "ok", found
    answer = http.post(
        "/v1/kernels/permute", json={"inputs": {"x": [[1.0, 2.0]]}, "params": {"dims": [1, 0]}}
    )
    assert answer.status_code == 200, answer.text
