"""Uploads that would fool the judge of benchmarks on a GPU, through a real server and its sandbox.

The ideas that need no GPU are in `tests/cheats`.
"""

from __future__ import annotations

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

LONG = {"shape": [8192, 8192], "dtype": "BF16", "params": {"dims": [1, 0]}}
SHORT = {**LONG, "shape": [512, 512]}

RIGHT = """
import torch
import triton
import triton.language as tl

@triton.jit
def _transpose(x, y, rows, columns, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < rows) & (j < columns)
    tl.store(y + i + j * rows, tl.load(x + i * columns + j, mask=inside), mask=inside)

def run(x):
    rows, columns = x.shape
    y = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, 64), triton.cdiv(columns, 64))
    _transpose[grid](x, y, rows, columns, 64, num_warps=8)
    return y

calls = 0
side = torch.cuda.Stream() if torch.cuda.is_available() else None

def permute(x, dims):
"""
CHEATS: dict[str, str] = {
    # On a stream that does not wait for the values of its inputs.
    "ahead": """
    with torch.cuda.stream(side):
        y = run(x)
    torch.cuda.current_stream().wait_event(side.record_event())
    return y
""",
    # On a stream for which the end of the call does not wait.
    "late": """
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return run(x)
""",
    "half-later": """
    global calls
    calls += 1
    y = run(x)
    if calls > 60 and not torch.cuda.is_current_stream_capturing():
        y[: y.shape[0] // 2].fill_(0)
    return y
""",
    "buffer": """
    global calls
    if isinstance(calls, int):
        calls = run(x)
    calls.copy_(run(x))
    return calls
""",
    "clock": """
    real = torch.cuda.Event.elapsed_time
    if not hasattr(torch.cuda.Event, "patched"):
        torch.cuda.Event.patched = True
        torch.cuda.Event.elapsed_time = lambda self, end: real(self, end) / 2
    return run(x)
""",
    "spin": """
    global calls
    calls += 1
    if calls > 20:
        _spin[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return run(x)

@triton.jit
def _spin(pointer):
    while tl.atomic_add(pointer, 0) == 0:
        pass
""",
}
WRONG = {"wrong_result"}
FOUND = {
    "ahead": WRONG,
    "late": {"wrong_result", "invalid"},
    "half-later": WRONG,
    "buffer": WRONG,
    "clock": {"invalid"},
    "spin": {"timeout"},
}


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device) as http:
        yield http


def rows(http: httpx.Client, names: list[str], case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    job = submit(http, implementations=names, cases=[case])
    job = reached(http, job, lambda found: found["state"] not in UNFINISHED, wait_s=240)
    found = results(http, job)
    return {row["implementation"].rpartition("/")[2]: row for row in found["measurements"]}


@pytest.mark.timeout(600)
def test_no_cheat_gets_a_time_and_the_other_rows_are_there(http: httpx.Client) -> None:
    names = []
    for name, body in {"right": "\n    return run(x)\n", **CHEATS}.items():
        uploaded(http, RIGHT + body.strip("\n") + "\n", name=name)
        names.append(f"local/{name}")

    found = rows(http, ["warpcall", *names], LONG)

    assert {name: found[name]["status"] for name in ("warpcall", "right")} == {
        "warpcall": "ok",
        "right": "ok",
    }, found
    assert found["right"]["verdict"] is not None
    for name, statuses in FOUND.items():
        assert found[name]["status"] in statuses, found[name]
        assert found[name]["verdict"] is None


@pytest.mark.timeout(600)
def test_times_of_short_calls_are_held_against_our_clock(http: httpx.Client) -> None:
    names = []
    for name in ("right", "clock"):
        body = CHEATS.get(name, "\n    return run(x)\n")
        uploaded(http, RIGHT + body.strip("\n") + "\n", name=f"short-{name}")
        names.append(f"local/short-{name}")

    found = rows(http, ["warpcall", *names], SHORT)

    assert found["short-right"]["status"] == "ok", found["short-right"]
    assert found["short-right"]["method"].startswith("graph")
    assert found["short-clock"]["status"] == "invalid"
