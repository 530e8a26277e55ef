"""Compile reports of kernels: their numbers are those of CUDA's tools, on every architecture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpcall import compile_reports
from warpcall_kernels import InvalidInput
from warpcall_kernels.compile import launches, resources
from warpcall_kernels.compile.architectures import ARCHITECTURES, architecture, occupancy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
MAX_SECONDS = 240.0


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_reports.with_cuobjdump"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=MAX_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    kernels: list[dict[str, Any]] = json.loads(done.stdout)
    return kernels


def test_registers_and_stack_of_ptxas_and_cuobjdump_agree(found: list[dict[str, Any]]) -> None:
    assert len(found) > 2 * len(ARCHITECTURES)
    for one in found:
        reported, seen = one["report"], one["cuobjdump"]
        assert (reported["registers"], reported["stack_bytes"]) == (
            seen["registers"],
            seen["stack_bytes"],
        ), one
        assert seen["shared_bytes"] - reported["static_shared_bytes"] in (0, 1024), one
        assert reported["spill_load_bytes"] == 0 or reported["spill_store_bytes"] > 0, one


def test_each_architecture_can_be_compiled_for(found: list[dict[str, Any]]) -> None:
    assert {one["gpu"] for one in found} == {*ARCHITECTURES} == {*compile_reports.ARCHITECTURES}
    for one in found:
        assert all(one["texts"][name] > 200 for name in compile_reports.TEXT_NAMES), one
        assert one["occupancy"]["blocks"] > 0, one


def test_tritons_representations_come_without_locations(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert f"tt.func public @{one['kernel']}(" in one["ttir"]
        assert "loc" not in one["ttir"].replace("block", "").replace("alloc", ""), one["ttir"]
    nested = (
        '%0 = f(%1) : (i32) -> i32 loc(callsite(#loc1 at "a (b".py:1:2(#loc3)))\n#loc1 = loc(u)\n'
    )
    assert launches.LOCATIONS.sub("", nested) == "%0 = f(%1) : (i32) -> i32\n"


def tool(folder: Path, *lines: str) -> Path:
    """An nvdisasm that does what these lines of a shell say."""
    folder.mkdir()
    path = folder / "nvdisasm"
    version = "[ $1 = --version ] && echo 'tools, release 13.0, V13.0.1' && exit"  # asked by Triton
    path.write_text("\n".join(["#!/bin/sh", version, *lines]))
    path.chmod(0o755)
    return path


UNKNOWN = "echo \"nvdisasm fatal   : Cannot decode architecture 'SM103a'\" >&2; exit 255"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (["echo the machine code"], "the machine code\n"),
        ([UNKNOWN], "// There is no text of the machine code: nvdisasm: nvdisasm fatal"),
        (None, "// There is no text of the machine code: nvdisasm: nvdisasm fatal"),
    ],
)
def test_a_gpu_that_tritons_nvdisasm_does_not_know_has_a_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    second: list[str] | None,
    expected: str,
) -> None:
    first = tool(tmp_path / "triton", UNKNOWN)
    monkeypatch.setenv("TRITON_NVDISASM_PATH", str(first))
    (tmp_path / "toolkit").mkdir() if second is None else tool(tmp_path / "toolkit", *second)
    monkeypatch.setenv("PATH", f"{tmp_path / 'toolkit'}:/usr/bin:/bin")

    text = resources.sass(b"a cubin")

    assert text.startswith(expected)


def test_an_nvdisasm_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tool(tmp_path / "triton", "echo out of paper >&2; exit 1")
    monkeypatch.setenv("TRITON_NVDISASM_PATH", str(broken))

    with pytest.raises(resources.ToolFailed, match="out of paper"):
        resources.sass(b"a cubin")


def test_an_unknown_architecture_is_refused() -> None:
    for name in ("sm_1", "", None, "sm_90a", "90"):
        with pytest.raises(InvalidInput, match="gpu must be one of sm_80, sm_86"):
            architecture(name)


@pytest.mark.parametrize(
    ("gpu", "registers", "shared_bytes", "warps", "blocks", "resident", "limited_by"),
    [
        # Worked by hand with the limits of the CUDA C++ Programming Guide.
        ("sm_80", 32, 0, 8, 8, 64, ["registers", "warps"]),
        ("sm_80", 33, 0, 8, 6, 48, ["registers"]),  # 40 registers are allocated
        ("sm_80", 255, 0, 4, 2, 8, ["registers"]),
        ("sm_80", 16, 0, 1, 32, 32, ["blocks"]),
        ("sm_86", 16, 0, 1, 16, 16, ["blocks"]),
        ("sm_86", 40, 49 << 10, 4, 2, 8, ["shared memory"]),
        ("sm_90", 64, 100 << 10, 4, 2, 8, ["shared memory"]),
        ("sm_90", 64, 227 << 10, 4, 1, 4, ["shared memory"]),
        ("sm_90", 64, (227 << 10) + 1, 4, 0, 0, ["shared memory"]),
        ("sm_90", 168, 0, 12, 1, 12, ["registers"]),
        ("sm_120", 128, 0, 3, 5, 15, ["registers"]),
    ],
)
def test_the_occupancy_follows_from_registers_shared_memory_and_warps(
    gpu: str,
    registers: int,
    shared_bytes: int,
    warps: int,
    blocks: int,
    resident: int,
    limited_by: list[str],
) -> None:
    found = occupancy(architecture(gpu), registers, shared_bytes, warps)

    assert (found.blocks, found.warps, found.limited_by) == (blocks, resident, limited_by)


def test_launches_are_noted_with_the_choice_of_the_autotuner() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_reports.observed"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**environment, "TRITON_STORE_BINARY_ONLY": "1"},
        text=True,
        timeout=MAX_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    plain, tuned = answer["kernels"]

    assert (plain["name"], plain["launches"], plain["grid"]) == ("_double", 3, [8, 1, 1])
    assert (plain["config"], plain["block"], plain["warps"]) == ("", "128", 4)
    assert (tuned["launches"], tuned["block"], tuned["warps"]) == (1, "128", 2)
    assert tuned["config"].startswith("BLOCK: 128, num_warps: 2")
    assert tuned["grid"] == [8, 1, 1]
    for one in (plain, tuned):
        assert one["registers"] > 0
        assert one["texts"] == ["ptx", "sass", "ttgir", "ttir"]
    assert answer["launched"] == 3 + 2 + 1 + 1, "of a recorded one, of the tuner's, and afterwards"
    assert answer["undone"]
