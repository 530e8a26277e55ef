"""A recorder compiles for many cases side by side before it records each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kernels.verified.recording import HEAD, Recording, empty, meta
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.remote import described

pytestmark = pytest.mark.timeout(300)
SOURCE = (
    HEAD
    + """
import os, time
from pathlib import Path

parent = os.getpid()

@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def f(x):
    print("recorded")
    Path({notes!r}, f"{{len(x)}} {{os.getpid()}}").touch()
    if os.getpid() != parent and len(x) == {endless}:
        time.sleep(1000)
    out = torch.empty_like(x)
    copy[(triton.cdiv(len(x), 256),)](x, out, len(x), BLOCK=256)
    return out
"""
)


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    process = Recording()
    yield process
    process.end()


def prepare(recording: Recording, sizes: list[int], until_s: float) -> dict[str, Any]:
    cases = [described({}, {"x": layout_of(empty(size))}, {"out": meta(size)}) for size in sizes]
    return recording.ask("prepare", gpu="sm_90", cases=cases, until_s=until_s)


def notes(folder: Path) -> dict[int, set[int]]:
    """The processes that called the function, by the size of the case."""
    found: dict[int, set[int]] = {}
    for size, pid in (path.name.split() for path in folder.iterdir()):
        found.setdefault(int(size), set()).add(int(pid))
    return found


@pytest.mark.slow
def test_cases_are_prepared_by_other_processes(recording: Recording, tmp_path: Path) -> None:
    recording.load(SOURCE.format(notes=str(tmp_path), endless=0), "f")
    sizes = [*range(100, 140)]

    assert prepare(recording, sizes, 120.0).keys() == {"number"}

    prepared = notes(tmp_path)
    assert sorted(prepared) == sizes
    others = set.union(*prepared.values())
    assert len(others) == len(os.sched_getaffinity(0))
    assert not any(map(psutil.pid_exists, others))
    plan = recording.plan({"x": empty(100)}, [meta(100)])
    assert [kernel.name for kernel in plan.kernels] == ["copy"]
    assert len(notes(tmp_path)[100]) == 2  # once more, with what the compiler has kept


def test_what_does_not_end_in_time_is_ended(recording: Recording, tmp_path: Path) -> None:
    recording.load(SOURCE.format(notes=str(tmp_path), endless=7), "f")

    prepare(recording, [7], 5.0)

    (pids,) = notes(tmp_path).values()
    assert not any(map(psutil.pid_exists, pids))
    assert recording.plan({"x": empty(7)}, [meta(7)]).kernels
