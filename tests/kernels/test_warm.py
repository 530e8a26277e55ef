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
# Each process is forked from one that has imported everything and compiled nothing.
PROGRAM = """
import dataclasses, json, os, pathlib, sys
from warpcall_kernels.compile import cache, warm
calls = [call for call in warm.cases() if call[0].name == "transpose-add" and call[1].name == "odd"]

def compile_all(own, shipped=None):
    os.environ["TRITON_CACHE_DIR"] = own
    if shipped:
        os.environ["TRITON_CACHE_MANAGER"] = "warpcall_kernels.compile.cache:ShippedCache"
        cache.SHIPPED = pathlib.Path(shipped)
    progress = []
    done = warm.warm(90, calls=calls, on_progress=lambda *counts: progress.append(counts))
    assert progress == [(1, 3), (2, 3), (3, 3)], progress
    print(json.dumps(dataclasses.asdict(done)), flush=True)

for caches in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        compile_all(*caches)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def warmed(*caches: tuple[Path, ...]) -> list[dict[str, object]]:
    """The summaries of `warm` from processes one after another: in this one kernels are interpreted.

    Args:
        caches: for each process its own cache and, if it has one, the shipped one.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([[*map(str, each)] for each in caches])],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_are_compiled_once_for_all_processes(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"

    first, again, with_the_shipped, without = warmed(
        (shipped,), (shipped,), (own, shipped), (own, tmp_path / "nothing")
    )

    kernels = first["kernels"]
    assert kernels == first["compiled"] == 3  # bf16 as the case has it, fp16, fp32
    assert again == with_the_shipped == {"kernels": kernels, "compiled": 0, "failed": []}
    assert without["compiled"] == kernels  # nothing was written where something was found


def test_common_calls_are_calls_that_the_op_takes() -> None:
    for op, case in cases():
        op.check(case.metas(), op.check_params(case.params))
