"""Kernels compiled ahead are found by other processes, also in a shipped cache that is read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warpcall_kernels.compile.warm import cases

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = """
import dataclasses, json, pathlib, sys
from warpcall_kernels.compile import cache, warm
if sys.argv[1:]:
    cache.SHIPPED = pathlib.Path(sys.argv[1])
calls = [call for call in warm.cases() if call[0].name == "transpose-add" and call[1].name == "odd"]
progress = []
done = warm.warm(90, calls=calls, on_progress=lambda *counts: progress.append(counts))
assert progress == [(1, 3), (2, 3), (3, 3)], progress
print(json.dumps(dataclasses.asdict(done)))
"""


def warmed(cache: Path, *shipped: Path) -> dict[str, object]:
    """The summary of `warm` from a process of its own: in this one kernels are interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    if shipped:
        environment["TRITON_CACHE_MANAGER"] = "warpcall_kernels.compile.cache:ShippedCache"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *shipped],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, object] = json.loads(done.stdout)
    return summary


def test_kernels_are_compiled_once_for_all_processes(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"

    first = warmed(shipped)
    again = warmed(shipped)
    with_the_shipped = warmed(own, shipped)
    without = warmed(own, tmp_path / "nothing")

    kernels = first["kernels"]
    assert kernels == first["compiled"] == 3  # bf16 as the case has it, fp16, fp32
    assert again == with_the_shipped == {"kernels": kernels, "compiled": 0, "failed": []}
    assert without["compiled"] == kernels  # nothing was written where something was found


def test_common_calls_are_calls_that_the_op_takes() -> None:
    for op, case in cases():
        op.check(case.metas(), op.check_params(case.params))
