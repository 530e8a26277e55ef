"""Jobs with uploaded code in the sandbox on a GPU: what it can do, and what it cannot break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pynvml
import pytest
import torch

from demo.server import Server
from tests.gpu.sandboxed import sandboxing
from tests.service.job_requests import ended, processes, results, submit
from tests.service.requests import well
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import uploaded
from tests.waiting import until

pytestmark = needs_bubblewrap

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "WARPCALL_UPLOAD_CALL_S": "10",
    "WARPCALL_JOB_STALL_S": "60",
    "WARPCALL_JOB_BLOCK_S": "5",
    "WARPCALL_WAITING_PROCESS_S": "0",  # tests look for processes that a job leaves
}
LARGE = {"shape": [4096, 4096], "dtype": "BF16", "params": {"dims": [1, 0]}}
HELD_BYTES = 8 << 30
NOISE_BYTES = 512 << 20  # what the lane itself may allocate meanwhile

HEAD = """
import torch
import triton
import triton.language as tl

def permute(x, dims):
    return run(x).permute(dims).contiguous()

"""
# It is right, and keeps the device busy for ever once it is alone there.
SPIN = """
calls = 0

@triton.jit
def _spin(pointer):
    while tl.atomic_add(pointer, 0) == 0:
        pass

def run(x):
    global calls
    calls += 1
    if calls > 20:
        _spin[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return x
"""
ILLEGAL = """
@triton.jit
def _write_far_away(pointer, offset):
    tl.store(pointer + offset, 0)

def run(x):
    _write_far_away[(1,)](x, 1 << 45)
    torch.cuda.synchronize()
    return x
"""
ALLOCATE = """
kept = []

def run(x):
    kept.append(torch.empty(1 << 42, dtype=torch.uint8, device=x.device))
    return x
"""
# A process of its own, with its own CUDA context, that would outlive the job.
HOLD = f"""
import subprocess, sys
CODE = '''
import time, torch
kept = torch.ones({HELD_BYTES}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(100_000)
'''
holder = None

def run(x):
    global holder
    if holder is None:
        holder = subprocess.Popen(
            [sys.executable, "-c", CODE], stdout=subprocess.PIPE, start_new_session=True
        )
        assert holder.stdout.readline() == b"held\\n"
    return x
"""
NOT_TRITON = """
@triton.jit
def _kernel(x_ptr, COUNT: tl.constexpr):
    tl.store(x_ptr, tl.arange(0, COUNT + 1))

def run(x):
    _kernel[(1,)](x, COUNT=4)
    return x
"""


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device, **SETTINGS) as http:
        yield http


def used_bytes() -> int:
    """Memory of the GPU that all processes together use."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def check_serves(http: httpx.Client) -> None:
    """The lane serves its next call without having been restarted, and no process of a job is left."""
    server: Server = http.server  # type: ignore[attr-defined]
    assert well(http).status_code == 200
    assert processes(server) == []
    lane = http.get("/readyz").json()["lanes"][0]
    assert (lane["state"], lane["restarts"]) == ("ready", 0)


def test_an_uploaded_triton_kernel_is_timed_beside_ours(http: httpx.Client) -> None:
    check_timed_beside_ours(http)
    check_serves(http)


def test_processes_that_wait_for_the_next_job_do_not_come_to_the_gpu(device: str) -> None:
    with sandboxing(device, **{**SETTINGS, "WARPCALL_WAITING_PROCESS_S": "600"}) as http:
        server: Server = http.server  # type: ignore[attr-defined]
        for _ in range(2):  # the second uses what waits since the first, and starts others
            check_timed_beside_ours(http)
            until(lambda: processes(server), "none wait for the next job")


def check_timed_beside_ours(http: httpx.Client) -> None:
    source = (ROOT / "examples/my_permute.py").read_text()
    uploaded(http, source, name="mine")
    names = ["warpcall", "local/mine", "torch", "copy"]

    job = ended(http, submit(http, cases=[LARGE], implementations=names))

    assert job["state"] == "succeeded", job
    found = results(http, job)
    rows: dict[str, Any] = {row["implementation"]: row for row in found["measurements"]}
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["local/mine"]["tags"] == []
    assert 0.2 < rows["local/mine"]["share_of_limit"] < 1.1
    assert "other process" not in str(found), "the job's own process is not foreign"


@pytest.mark.parametrize(
    ("source", "exit_class"),
    [(SPIN, "timeout"), (ILLEGAL, "cuda_error"), (ALLOCATE, "oom")],
    ids=["spin", "illegal", "allocate"],
)
def test_an_upload_that_breaks_the_device_ends_its_job_only(
    source: str, exit_class: str, http: httpx.Client
) -> None:
    uploaded(http, HEAD + source, name=exit_class)

    job = ended(http, submit(http, cases=[LARGE], implementations=[f"local/{exit_class}"]))

    check_serves(http)
    assert job["exit_class"] == exit_class, job


def test_memory_that_an_upload_holds_is_free_after_the_job(http: httpx.Client) -> None:
    uploaded(http, HEAD + HOLD, name="hold")
    well(http)
    before = used_bytes()

    job = ended(http, submit(http, cases=[LARGE], implementations=["local/hold", "torch"]))

    assert job["state"] == "succeeded", job
    assert [row["status"] for row in results(http, job)["measurements"]] == ["ok", "ok"]
    until(lambda: used_bytes() < before + NOISE_BYTES)
    check_serves(http)


def test_an_error_of_tritons_compiler_has_a_traceback_and_takes_nothing_from_others(
    http: httpx.Client,
) -> None:
    uploaded(http, HEAD + NOT_TRITON, name="typo")

    job = ended(http, submit(http, cases=[LARGE], implementations=["torch", "local/typo"]))

    good, bad = results(http, job)["measurements"]
    assert (job["state"], good["status"], bad["status"]) == ("partial", "ok", "compile_error")
    assert "tl.arange(0, COUNT + 1)" in bad["traceback"]
    check_serves(http)
