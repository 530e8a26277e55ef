"""Profiles by Nsight Compute: the program that it starts, its failures, and its limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.service.runs.sent_frames import TASK
from tests.service.uploads.sources import SHORT
from tests.service.worker.fake_ncu import DETAILS, installed
from warpcall_bench.profilers import ncu, program
from warpcall_bench.profilers.messages import ChildTask
from warpcall_bench.profilers.program import NoProfile, ProfileLimits
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import NcuOptions, ProfileTask, Task, Upload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

CASE = {"shape": [4, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
CHILD: ChildTask = {
    "device": "cpu",
    "modules": {},
    "uploads": [],
    "problem": None,
    "op": "permute",
    "seed": 43,
    "spec": CASE,
    "implementation": "torch",
    "reports": False,
}
LIMITS = ProfileLimits(60.0, 30.0, 1 << 20)
COUNTS = """
import pathlib

def permute(x, dims):
    with pathlib.Path({0!r}).open("a") as file:
        file.write(f"{{x.sum().item()}}\\n")
    print("this is not in the output of the profiler")
    return x.permute(dims).contiguous()
"""
RAISES = "def permute(x, dims):\n    raise ValueError('not like this')\n"
LEAVES = "def permute(x, dims):\n    import os\n    os._exit(3)\n"
WAITS = "def permute(x, dims):\n    import time\n    time.sleep({0})\n    return x\n"
STAYS = """
import threading, time

def permute(x, dims):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return x.permute(dims).contiguous()
"""


class Leased:
    """A lease of a device, which counts."""

    def __init__(self) -> None:
        self.taken = self.returned = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self.taken += 1
        yield
        self.returned += 1


def profiled(
    folder: Path,
    mode: str = "",
    source: str = SHORT,
    limits: ProfileLimits = LIMITS,
    options: NcuOptions | None = None,
) -> tuple[ncu.Files | str, Leased]:
    """What a profile of a source gives: its files, or why there are none."""
    lease = Leased()
    upload: Upload = {
        "name": "ann/mine",
        "op": "permute",
        "function": "permute",
        "source": source,
    }
    task: ChildTask = {**CHILD, "uploads": [upload], "implementation": "ann/mine"}
    path = installed(folder / "bin", mode)
    before = {*process_tree.descendants(1)}
    try:
        found: ncu.Files | str = ncu.profile(path, task, "heading", limits, lease, options)
    except NoProfile as error:
        found = str(error)
    left = {pid for pid in {*process_tree.descendants(1)} - before if str(folder) in _command(pid)}
    assert left == set()
    assert lease.taken == lease.returned
    return found, lease


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_a_profile_is_a_report_and_a_text(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    found, lease = profiled(tmp_path, source=COUNTS.format(str(calls)))

    assert isinstance(found, ncu.Files), found
    assert found.report == b"a report"
    assert found.text.decode() == f"heading\n\n{DETAILS}"
    assert lease.taken == 1
    sums = calls.read_text().split()
    assert len(sums) == 3, "two calls before the one that is profiled"
    assert len(set(sums)) == 1


def test_a_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    for calls in (first, second):
        profiled(tmp_path, source=COUNTS.format(str(calls)))

    assert first.read_text() == second.read_text()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("no permission", "NVreg_RestrictProfilingToAdminUsers=0, or, for code that does not run"),
        ("no section", "Nsight Compute failed: Unable to find section 'Nothing'."),
        ("fails at once", "Nsight Compute failed: Failed to initialize the profiler: Library"),
        ("no kernels", "its call launched no kernel that Nsight Compute could see"),
        ("is killed", "Nsight Compute ended by signal 9 without a report"),
        ("cannot print", "Nsight Compute ended with exit status 1 without a report"),
    ],
)
def test_a_profiler_that_fails_gives_the_reason(tmp_path: Path, mode: str, why: str) -> None:
    assert why in profiled(tmp_path, mode)[0]


def test_a_metric_that_no_launch_has_is_named(tmp_path: Path) -> None:
    unknown: NcuOptions = {"metrics": ["some_have_it.sum", "no_such_metric.sum"]}

    found, _ = profiled(tmp_path / "a", "unknown metric", options=unknown)
    known, _ = profiled(tmp_path / "b", "unknown metric", options={"metrics": ["some_have_it.sum"]})

    assert found == (
        "Nsight Compute has no values of no_such_metric.sum on this GPU: `ncu --query-metrics` lists "
        "the metrics that there are"
    )
    assert isinstance(known, ncu.Files), known


USUAL = [word for name in ncu.SECTIONS for word in ("--section", name)]
FIRST = ["--launch-count", "16"]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, [*FIRST, *USUAL]),
        ({"kernels": "-o x", "launch": None}, [*FIRST, "--kernel-name", "regex:-o x", *USUAL]),
        ({"launch": 3}, ["--launch-skip", "2", "--launch-count", "1", *USUAL]),
        ({"sections": ["A", "B"]}, [*FIRST, "--section", "A", "--section", "B"]),
        ({"metrics": ["a.sum", "b.avg"]}, [*FIRST, "--metrics", "a.sum,b.avg"]),
        (
            {"sections": ["A"], "metrics": ["a.sum"]},
            [*FIRST, "--section", "A", "--metrics", "a.sum"],
        ),
    ],
)
def test_the_profiler_gets_what_was_asked(
    tmp_path: Path, options: NcuOptions, arguments: list[str]
) -> None:
    found, _ = profiled(tmp_path, options=options)

    assert isinstance(found, ncu.Files), found
    given = (tmp_path / "bin" / "args").read_text().split("\n")
    assert given[given.index("none") + 1 : -1] == arguments, given
    assert given[-1] == "--force-overwrite"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kernels": "norm"}, "its call had no launch of a kernel that matches 'norm'; it "),
        ({"launch": 9}, "its call had no launch number 9; it "),
        (
            {"kernels": "soft", "launch": 9},
            "its call had no launch number 9 of a kernel that matches 'soft'; it ",
        ),
    ],
)
def test_where_no_launch_fits_the_kernels_of_the_call_are_named(
    tmp_path: Path, options: NcuOptions, why: str
) -> None:
    found, _ = profiled(tmp_path, "no kernels", options=options)

    assert found == f"{why}launched _softmax, void fill<float>(float *)"


@pytest.mark.parametrize(("mode", "seconds", "taken"), [("hangs", 2, 0), ("hangs later", 40, 1)])
def test_a_profiler_that_hangs_is_killed(
    tmp_path: Path, mode: str, seconds: float, taken: int
) -> None:
    found, lease = profiled(tmp_path, mode, limits=LIMITS._replace(seconds=seconds))

    assert found == f"the profiler was not done within {seconds} s"
    assert lease.taken == taken


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (RAISES, "it raised ValueError: not like this"),
        (LEAVES, "its process ended early"),
        ("import nothing_of_this_name", "it raised ModuleNotFoundError: No module named"),
    ],
)
def test_an_implementation_that_fails_gives_the_reason(
    tmp_path: Path, source: str, why: str
) -> None:
    found, lease = profiled(tmp_path, source=source)

    assert why in found
    assert lease.taken == 0


def test_the_time_of_jobs_that_go_first_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(program, "time", clock)
    lease = Leased()
    upload: Upload = {"name": "a/b", "op": "permute", "function": "permute", "source": SHORT}
    task: ChildTask = {**CHILD, "uploads": [upload], "implementation": "a/b"}

    @contextlib.contextmanager
    def late() -> Iterator[None]:
        passed[0] = 1000.0
        with lease():
            yield

    found = ncu.profile(installed(tmp_path / "bin"), task, "heading", LIMITS, late)

    assert found.report == b"a report"
    assert lease.returned == 1


def test_a_call_that_keeps_the_device_too_long_is_killed(tmp_path: Path) -> None:
    found, lease = profiled(tmp_path, source=WAITS.format(2), limits=LIMITS._replace(call_s=0.5))

    assert found == "its call was not profiled within 0.5 s"
    assert lease.taken == 1


def test_a_program_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path, source=STAYS)

    assert isinstance(found, ncu.Files), found
    assert (tmp_path / "bin" / "status").read_text() == "1"


def test_a_report_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path, limits=LIMITS._replace(nbytes=7))

    assert "its report has 8 bytes, at most 7 are kept" in found


def test_a_text_that_is_too_long_is_cut(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path, limits=LIMITS._replace(nbytes=100))

    assert isinstance(found, ncu.Files), found
    assert found.text.decode() == f"heading\n\n{DETAILS}"[:100]


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoProfile, match="could not be started"):
        ncu.profile(str(tmp_path / "ncu"), CHILD, "heading", LIMITS, Leased())


@pytest.mark.parametrize(
    ("device", "program", "why"),
    [
        ("cpu", "/bin/ncu", "it ran without a GPU"),
        ("cuda:0", "", "WARPCALL_NCU to the path of ncu"),
    ],
)
def test_a_server_that_cannot_profile_says_so(device: str, program: str, why: str) -> None:
    wanted: ProfileTask = {
        "profiler": "ncu",
        "cases": [(0, CASE, ["torch"])],
        "most_bytes": 1000,
        "program": program,
        "limit_s": 9.0,
        "call_s": 3.0,
    }
    task: Task = {**TASK, "device": device, "profile": wanted}

    with pytest.raises(NoProfile, match=why):
        ncu.profile_of_job(task, 0, "permute", "torch", Leased())
