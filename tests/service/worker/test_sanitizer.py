"""An upload under compute-sanitizer: the program that it starts, its failures, and its limits."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.service.runs.sent_frames import TASK
from tests.service.uploads.sources import SHORT
from tests.service.worker.fake_sanitizer import NO_ERROR, OUT_OF_BOUNDS, RACE, installed
from tests.service.worker.test_ncu import CASE, CHILD, COUNTS, LIMITS, RAISES, STAYS, Leased
from warpcall_bench.profilers import sanitizer
from warpcall_bench.profilers.messages import ChildTask
from warpcall_bench.profilers.program import NoProfile, ProfileLimits
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import ProfileTask, Task, Upload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

REPORTED = (
    "Race reported between Write access at sum(float *, int)+0x80 in mine.cu:12 and Read access at "
    "sum(float *, int)+0x1c0 in mine.cu:14 [4096 hazards]"
)


def checked(
    program: str, source: str = SHORT, tool: str = "memcheck", limits: ProfileLimits = LIMITS
) -> str:
    """What a tool says of a source: its text, or why there is none."""
    upload: Upload = {"name": "ann/a", "op": "permute", "function": "permute", "source": source}
    task: ChildTask = {**CHILD, "uploads": [upload], "implementation": "ann/a", "once": True}
    folder = str(Path(program).parent)
    try:
        found = sanitizer.check(tool, program, task, "case\nann/a", limits).decode()
    except NoProfile as error:
        found = str(error)
    left = {pid for pid in process_tree.descendants(1) if folder in _command(pid)}
    assert left == set()
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_one_call_is_checked_with_each_tensor_allocated_on_its_own(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    found = checked(installed(tmp_path / "bin"), COUNTS.format(str(calls)))

    assert found == f"memcheck: 0 errors\n\ncase\nann/a\n\n{NO_ERROR}"
    assert len(calls.read_text().split()) == 1
    *given, caching = (tmp_path / "bin" / "args").read_text().split("\n")
    assert given == [
        *("--tool", "memcheck", "--print-limit", "20", "--show-backtrace", "no", "--log-file"),
    ]
    assert caching == "1"


@pytest.mark.parametrize(
    ("tool", "written", "first"),
    [
        (
            "memcheck",
            OUT_OF_BOUNDS,
            "32 errors, first: Invalid __global__ write of size 4 bytes at _copy+0x1d0 in mine.py:9",
        ),
        (
            "racecheck",
            RACE,
            f"1 hazard (1 error, 0 warnings), first: {REPORTED}",
        ),
    ],
)
def test_the_first_line_has_the_first_error(
    tmp_path: Path, tool: str, written: str, first: str
) -> None:
    found = checked(installed(tmp_path / "bin", **{tool: written}), tool=tool)

    assert found == f"{tool}: {first}\n\ncase\nann/a\n\n{written}"


def test_errors_are_shown_although_the_call_raised_an_exception(tmp_path: Path) -> None:
    """An access out of bounds ends the kernel, and the next call of CUDA is an error."""
    program = installed(tmp_path / "bin", memcheck=OUT_OF_BOUNDS)

    assert checked(program, RAISES).startswith("memcheck: 32 errors, first: Invalid")


def test_a_call_that_raised_an_exception_is_not_clean(tmp_path: Path) -> None:
    found = checked(installed(tmp_path / "bin"), RAISES)

    assert found == "it raised ValueError: not like this"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("fails at once", "compute-sanitizer failed: Error: No attachable process found"),
        ("is killed", "compute-sanitizer ended by signal 9 without a result"),
    ],
)
def test_a_sanitizer_that_fails_gives_the_reason(tmp_path: Path, mode: str, why: str) -> None:
    assert checked(installed(tmp_path / "bin", mode)) == why


def test_a_sanitizer_that_hangs_is_killed(tmp_path: Path) -> None:
    found = checked(installed(tmp_path / "bin", "hangs"), limits=LIMITS._replace(seconds=2.0))

    assert found == "memcheck was not done within 2 s"


def test_a_program_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    assert checked(installed(tmp_path / "bin"), STAYS).startswith("memcheck: 0 errors\n")


def test_a_text_that_is_too_long_is_cut(tmp_path: Path) -> None:
    found = checked(installed(tmp_path / "bin"), limits=LIMITS._replace(nbytes=30))

    assert found == "memcheck: 0 errors\n\ncase\nann/a"


@pytest.mark.parametrize(
    ("device", "program", "why"),
    [
        ("cpu", "/bin/compute-sanitizer", "it ran without a GPU"),
        ("cuda:0", "", "WARPCALL_COMPUTE_SANITIZER to its path"),
        ("cuda:0", "/nowhere/compute-sanitizer", "could not be started"),
    ],
)
def test_a_server_that_cannot_check_says_so(device: str, program: str, why: str) -> None:
    wanted: ProfileTask = {
        "profiler": "memcheck",
        "cases": [(0, CASE, ["torch"])],
        "most_bytes": 1000,
        "program": program,
        "limit_s": 9.0,
        "call_s": 3.0,
    }
    task: Task = {**TASK, "device": device, "profile": wanted}
    lease = Leased()

    with pytest.raises(NoProfile, match=why):
        sanitizer.check_of_job("memcheck", task, 0, "permute", "torch", lease)
    assert lease.taken == lease.returned == ("nowhere" in program)
