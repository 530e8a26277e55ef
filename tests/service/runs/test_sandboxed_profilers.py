"""Profilers in the sandbox: what it shows of them, and a profile that is made there."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.service.runs.sandboxes import needs_bubblewrap, settings, tried
from tests.service.uploads.sources import SHORT
from tests.service.worker import fake_sanitizer
from tests.service.worker.fake_ncu import DETAILS, installed
from warpcall_bench.profilers.messages import ChildTask
from warpcall_bench.runs.sandbox import Sandbox

PROFILE = """
from contextlib import nullcontext
from warpcall_bench.profilers import ncu
from warpcall_bench.profilers.program import ProfileLimits

files = ncu.profile(program, task, "heading", ProfileLimits(90.0, 30.0, 1 << 20), nullcontext)
return [files.report.decode(), files.text.decode()]
"""


SANITIZE = """
from warpcall_bench.profilers import sanitizer
from warpcall_bench.profilers.program import ProfileLimits

limits = ProfileLimits(90.0, 30.0, 1 << 20)
return sanitizer.check("memcheck", program, task, "heading", limits).decode()
"""
CHILD: ChildTask = {
    "device": "cpu",
    "modules": {},
    "uploads": [{"name": "ann/a", "op": "permute", "function": "permute", "source": SHORT}],
    "problem": None,
    "op": "permute",
    "seed": 4,
    "spec": {"shape": [4, 8], "dtype": "F32", "params": {"dims": [1, 0]}},
    "implementation": "ann/a",
    "reports": False,
}


def shown(arguments: list[str]) -> set[str]:
    """The files and folders of the machine that options of bubblewrap show."""
    pairs = itertools.pairwise(arguments)
    return {path for option, path in pairs if option == "--ro-bind"}


def test_the_folder_of_the_profiler_is_shown_only_if_it_is_used(tmp_path: Path) -> None:
    program = installed(tmp_path / "nsight")
    sandbox = Sandbox(settings(tmp_path / "data"))

    with_it = shown(sandbox.launch(profilers=[program])["arguments"])
    without_it = shown(sandbox.launch()["arguments"])

    assert without_it < with_it
    assert str(tmp_path / "nsight") in with_it - without_it


def test_the_folder_of_a_toolkits_sanitizer_is_shown(tmp_path: Path) -> None:
    program = fake_sanitizer.installed(tmp_path / "cuda" / "bin")
    (tmp_path / "cuda" / "compute-sanitizer").mkdir()
    sandbox = Sandbox(settings(tmp_path / "data"))

    seen = shown(sandbox.launch(profilers=[program])["arguments"])

    assert {str(tmp_path / "cuda" / name) for name in ("bin", "compute-sanitizer")} <= seen


@needs_bubblewrap
def test_uploaded_code_is_sanitized_inside(tmp_path: Path) -> None:
    program = fake_sanitizer.installed(tmp_path / "nvidia", memcheck=fake_sanitizer.OUT_OF_BOUNDS)
    given = settings(tmp_path / "data", sandbox_paths=str(tmp_path / "nvidia"))
    once: ChildTask = {**CHILD, "once": True}

    found = tried({"check": SANITIZE}, given, 120.0, program=program, task=once)["check"]

    assert found[0] == "done", found
    assert found[1].startswith("memcheck: 32 errors, first: Invalid __global__ write of size 4")


@needs_bubblewrap
def test_uploaded_code_is_profiled_inside(tmp_path: Path) -> None:
    program = installed(tmp_path / "nsight")
    given = settings(tmp_path / "data", sandbox_paths=str(tmp_path / "nsight"))

    found = tried({"profile": PROFILE}, given, 120.0, program=program, task=CHILD)["profile"]

    assert found[0] == "done", found
    assert found[1][0] == "a report"
    assert found[1][1] == f"heading\n\n{DETAILS}"
