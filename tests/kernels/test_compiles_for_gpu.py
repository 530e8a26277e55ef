"""Every kernel compiles for an H200 on a machine without a GPU, and fits it.

`-k isin` compiles the kernels of one op, and `-s` prints a table of them.
"""

from __future__ import annotations

import functools
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


every_op = pytest.mark.parametrize("op", ops())


H200 = 90
OTHERS = "capability"  # the parameter of tests that compile for another GPU than an H200


@functools.cache
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
def reports(request: pytest.FixtureRequest) -> dict[int, dict[str, Any]]:
    """By capability, what one process compiled for the tests of this file that were selected."""
    file = request.node.nodeid
    calls = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.nodeid.startswith(file)
        and hasattr(item, "callspec")
    ]
    wanted = sorted({str(call["op"]) for call in calls})
    flags = ["--all", str(H200)] if any(OTHERS not in call for call in calls) else []
    for capability in sorted({str(call[OTHERS]) for call in calls if OTHERS in call}):
        flags += ["--few", capability]
    return {int(one): report for one, report in compiled(*flags, "--", *wanted).items()}


@pytest.fixture
def kernels(op: str, reports: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of the compiled kernels of an op."""
    return [kernel for kernel in reports[H200]["kernels"] if kernel["op"] == op]


@pytest.mark.slow
@every_op
def test_every_case_compiles(
    op: str, reports: dict[int, dict[str, Any]], kernels: list[dict[str, Any]]
) -> None:
    lines = [f"{'kernel':40} {'warps':>5} {'regs':>4} {'stack':>5} {'shared':>6}  first case"]
    lines += [
        f"{k['kernel']:40} {k['warps']:5} {k['registers']:4} {k['stack_bytes']:5} "
        f"{k['shared_bytes']:6}  {k['op']} {k['case']} ({k['constants']})"
        for k in sorted(kernels, key=lambda k: str(k["kernel"]))
    ]
    print("\n".join([*lines, f"{len(kernels)} kernels"]))  # noqa: T201  # shown with -s

    assert kernels
    assert not [one for one in reports[H200]["failed"] if one.startswith(f"{op} ")]


@every_op
def test_nothing_spills_much(op: str, kernels: list[dict[str, Any]]) -> None:
    assert not [k for k in kernels if k["stack_bytes"] > MAX_STACK_BYTES]


@every_op
def test_every_block_fits_into_shared_memory(op: str, kernels: list[dict[str, Any]]) -> None:
    assert not [k for k in kernels if k["shared_bytes"] > MAX_SHARED_BYTES]


@every_op
def test_the_driver_is_given_the_parameters_that_kernels_take(
    op: str, kernels: list[dict[str, Any]]
) -> None:
    assert not [k for k in kernels if k["packed_bytes"] != k["parameter_bytes"]]


@every_op
def test_verified_kernels_could_be_these(op: str, kernels: list[dict[str, Any]]) -> None:
    assert not [k for k in kernels if k["refused"]]


@pytest.mark.parametrize("op", ["isin"])
def test_triton_needs_no_shared_memory_while_isin_has_a_set_there(
    op: str, kernels: list[dict[str, Any]]
) -> None:
    """It reserves the slots that the kernel does not declare, or what it finds a range with before."""
    seen = set()
    for kernel in kernels:
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


@every_op
@pytest.mark.parametrize(
    "capability",
    [89, pytest.param(80, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow)],
)
def test_other_gpus_are_compiled_for(
    capability: int, op: str, reports: dict[int, dict[str, Any]]
) -> None:
    report = reports[capability]
    kernels = [kernel for kernel in report["kernels"] if kernel["op"] == op]

    assert kernels
    assert not [one for one in report["failed"] if one.startswith(f"{op} ")]
    assert not [k for k in kernels if k["stack_bytes"] > MAX_STACK_BYTES]
    assert not [k for k in kernels if k["shared_bytes"] > LEAST_SHARED_BYTES]
    assert not [k for k in kernels if k["refused"]]
