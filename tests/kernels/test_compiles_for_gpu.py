"""Every kernel compiles for an H200 on a machine without a GPU, and fits it. `-s` prints a table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpcall_kernels import ops
from warpcall_kernels._isin.shared import MOST_DECLARED

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 500.0  # with an empty cache it takes some 90 on two cores, and 300 beside other tests
MAX_STACK_BYTES = 64  # a thread: some spilled addresses are cheap, a spilled tile is not
MAX_SHARED_BYTES = 232_448  # a block may have, on sm_90
LEAST_SHARED_BYTES = 101_376  # on sm_89, the least of those that are compiled for

pytestmark = pytest.mark.timeout(550)


def compiled(*arguments: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_gpu", *arguments],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=MAX_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return compiled()


@pytest.fixture(scope="module")
def table(report: dict[str, Any]) -> str:
    lines = [f"{'kernel':40} {'warps':>5} {'regs':>4} {'stack':>5} {'shared':>6}  first case"]
    lines += [
        f"{k['kernel']:40} {k['warps']:5} {k['registers']:4} {k['stack_bytes']:5} "
        f"{k['shared_bytes']:6}  {k['op']} {k['case']} ({k['constants']})"
        for k in sorted(report["kernels"], key=lambda k: (k["op"], k["kernel"]))
    ]
    lines.append(f"{len(report['kernels'])} kernels")
    return "\n".join(lines)


def test_every_case_compiles(report: dict[str, Any], table: str) -> None:
    print(table)  # noqa: T201  # what the page on kernels quotes; shown with -s

    assert not report["failed"]


def test_every_op_has_a_kernel(report: dict[str, Any]) -> None:
    assert {k["op"] for k in report["kernels"]} == set(ops())


def test_nothing_spills_much(report: dict[str, Any]) -> None:
    assert not [k for k in report["kernels"] if k["stack_bytes"] > MAX_STACK_BYTES]


def test_every_block_fits_into_shared_memory(report: dict[str, Any]) -> None:
    assert not [k for k in report["kernels"] if k["shared_bytes"] > MAX_SHARED_BYTES]


def test_triton_needs_no_shared_memory_while_isin_has_a_set_there(report: dict[str, Any]) -> None:
    """It reserves the slots that the kernel does not declare, or what it finds a range with before."""
    seen = set()
    for kernel in report["kernels"]:
        if kernel["kernel"] != "shared_kernel":
            continue
        constants = dict(
            pair.split("=", 1) for pair in re.findall(r"[A-Z]+=\w+", kernel["constants"])
        )
        nbytes = int(constants["SLOTS"]) * (8 if constants["KEY"] == "uint64" else 4)
        reserved = nbytes > MOST_DECLARED.value
        seen.add((constants["SET"], reserved))
        if reserved:
            assert kernel["shared_bytes"] == nbytes
        else:
            assert kernel["shared_bytes"] <= (256 if constants["SET"] == "either" else 0)

    assert {("bits", False), ("hash", False), ("hash", True), ("either", False)} <= seen


@pytest.mark.parametrize("capability", [80, 89, 100])
def test_other_gpus_are_compiled_for(capability: int) -> None:
    report = compiled("--capability", str(capability), "--few")

    assert not report["failed"]
    assert {k["op"] for k in report["kernels"]} == set(ops())
    assert not [k for k in report["kernels"] if k["stack_bytes"] > MAX_STACK_BYTES]
    assert not [k for k in report["kernels"] if k["shared_bytes"] > LEAST_SHARED_BYTES]
