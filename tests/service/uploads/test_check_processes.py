"""The process that waits for the next check: which check takes it, what it keeps, when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from tests.service.compile_reports import sources
from tests.service.runs.sandboxes import needs_bubblewrap, settings
from tests.service.uploads.processes import reapers_of, waiting_of
from tests.suspended import suspend
from tests.waiting import lives
from warpcall_service.runs.one_shot import OneShotError
from warpcall_service.settings import Settings
from warpcall_service.uploads.check_processes import CheckProcesses

LIMIT_S = 100.0
TEST_S = 100.0
MAX_ANSWER_BYTES = 2 << 20
EXPLAIN: dict[str, Any] = {
    "op": "permute",
    "problem": None,
    "function": "permute",
    "source": sources.TUNED,
    "case": {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}},
    "gpu": "sm_90",
    "limit_s": LIMIT_S,
    "memory_bytes": 1 << 30,
}
SAYS = """
import builtins, json, os, sys, time
from pathlib import Path

BODY

def permute(x, dims): pass

command = Path("/proc/self/cmdline").read_bytes().decode()
permute.__doc__ = json.dumps({"waited": "waiting_check" in command, "found": found})
"""
Test = Callable[[CheckProcesses], Awaitable[None]]


@pytest.fixture(params=["trusted", pytest.param("sandboxed", marks=needs_bubblewrap)])
def mode(request: pytest.FixtureRequest) -> Literal["trusted", "sandboxed"]:
    found: Literal["trusted", "sandboxed"] = request.param
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # such as the template of forks
    yield
    assert not set(psutil.Process().children(recursive=True)) - before


def checked(given: Settings, test: Test) -> None:
    """Run a test with processes that are stopped at its end."""

    async def run() -> None:
        processes = CheckProcesses(given)
        try:
            async with asyncio.timeout(TEST_S):
                await test(processes)
        finally:
            await processes.stop()

    asyncio.run(run())


async def answer(
    processes: CheckProcesses,
    body: str = "found = None",
    limit_s: float = LIMIT_S,
    process_limit_s: float = LIMIT_S,
    **rest: Any,
) -> dict[str, Any]:
    """The answer to the check of a source with this code; of `SAYS` if it is accepted.

    Args:
        limit_s: seconds for the import.
        process_limit_s: seconds for the process.
    """
    request = {
        "op": "permute",
        "function": "permute",
        "source": SAYS.replace("BODY", body),
        "inputs": ["x"],
        "optional_inputs": [],
        "params": ["dims"],
        "limit_s": limit_s,
    }
    text = await processes.run(
        "upload_check", request, process_limit_s, MAX_ANSWER_BYTES, **{"trusted": False, **rest}
    )
    found: dict[str, Any] = json.loads(text)
    if "doc" in found:
        found = json.loads(found["doc"])
    return found


async def report(processes: CheckProcesses, *, own: bool) -> dict[str, Any]:
    request = {**EXPLAIN, **({"source": None, "function": ""} if own else {})}
    text = await processes.run("explain", request, LIMIT_S, MAX_ANSWER_BYTES, trusted=own)
    found: dict[str, Any] = json.loads(text)
    return found


def waiting() -> list[psutil.Process]:
    return waiting_of(psutil.Process())


def reapers() -> list[psutil.Process]:
    return reapers_of(psutil.Process())


async def one_waiting() -> psutil.Process:
    """The process that waits, once it runs."""
    while not (found := waiting()):
        await asyncio.sleep(0.02)
    (process,) = found
    return process


def test_a_check_takes_the_process_that_waits_since_the_one_before(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    async def test(processes: CheckProcesses) -> None:
        assert waiting() == [], "before the first check there is none"
        first = await answer(processes)
        second = await answer(
            processes, "found = 'warpcall_kernels.compile.launches' in sys.modules"
        )

        assert first == {"waited": False, "found": None}
        assert second == {"waited": True, "found": True}

    checked(settings(tmp_path / "data", mode), test)


def test_a_process_answers_one_request_and_the_next_finds_nothing_of_it(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    body = """
mark = Path("/tmp/mark-of-a-check")
found = [hasattr(builtins, "mark"), mark.exists() and mode == "sandboxed", "uploaded2" in os.environ]
builtins.mark = os.environ["uploaded2"] = "x"
mark.write_text("x")
if mode == "trusted":
    mark.unlink()
if not os.fork():
    os.setsid()
    time.sleep(600)
""".replace("mode", repr(mode))

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        taken = []
        for _ in range(3):
            taken.append(await one_waiting())
            assert await answer(processes, body) == {"waited": True, "found": [False] * 3}
            assert not taken[-1].is_running()

        assert len(set(taken)) == 3

    checked(settings(tmp_path / "data", mode), test)


def test_checks_at_one_moment_have_a_process_each(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    body = "import builtins\nfound = hasattr(builtins, 'mark')\nbuiltins.mark = True\n"

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)

        found = await asyncio.gather(*(answer(processes, body) for _ in range(3)))

        assert found == [{"waited": True, "found": False}] * 3
        await one_waiting()

    checked(settings(tmp_path / "data", mode), test)


@pytest.mark.parametrize("victim", ["process", "reaper"])
def test_a_process_that_was_killed_is_replaced(
    victim: str, mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        process = await one_waiting()
        (reaper,) = reapers()
        (process if victim == "process" else reaper).kill()
        for one in (process, reaper):
            while lives(one):
                await asyncio.sleep(0.02)

        assert not (await answer(processes))["waited"]
        assert (await answer(processes))["waited"]

    checked(settings(tmp_path / "data", mode), test)


def test_a_process_that_is_killed_before_it_has_the_request_costs_no_check(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        process = await one_waiting()
        suspend(process)
        asked = asyncio.create_task(answer(processes))
        await asyncio.sleep(0.2)
        process.kill()

        assert not (await asked)["waited"]

    checked(settings(tmp_path / "data", mode), test)


def test_code_that_kills_its_process_runs_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    body = f"""
with open({str(runs)!r}, "a") as file:
    file.write("x")
os.kill(os.getpid(), 9)
"""

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        with pytest.raises(OneShotError, match="its process ended before it had answered"):
            await answer(processes, body)

        assert runs.read_text() == "x"
        assert (await answer(processes))["waited"]

    checked(settings(tmp_path / "data", "trusted"), test)


def test_limits_count_from_the_request(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        await one_waiting()
        await asyncio.sleep(4)

        found = await answer(processes, "time.sleep(0.5); found = None", limit_s=2)
        endless = await answer(processes, "time.sleep(600)", limit_s=1)

        assert found["waited"]
        assert endless["error"].endswith("the import did not end within 1 s")

    checked(settings(tmp_path / "data", mode), test)


def test_a_request_may_take_as_long_as_one_to_a_new_process(tmp_path: Path) -> None:
    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=True)
        await one_waiting()
        await asyncio.sleep(6)

        found = await answer(processes, process_limit_s=5.0, trusted=True)

        assert found["waited"]

    checked(settings(tmp_path / "data", "trusted"), test)


def test_a_process_that_nobody_needs_ends(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path
) -> None:
    async def test(processes: CheckProcesses) -> None:
        await answer(processes)
        assert reapers(), "one process waits, or will once it has started"
        while waiting() or reapers():
            await asyncio.sleep(0.02)

        assert not (await answer(processes))["waited"]

    checked(settings(tmp_path / "data", mode, check_wait_s=1.0), test)


def test_no_process_waits_if_the_setting_says_so(tmp_path: Path) -> None:
    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        for _ in range(2):
            assert not (await answer(processes))["waited"]
            assert waiting() == reapers() == []

    checked(settings(tmp_path / "data", "trusted", check_wait_s=0.0), test)


def test_none_is_started_after_the_stop(tmp_path: Path) -> None:
    async def test(processes: CheckProcesses) -> None:
        asked = asyncio.create_task(answer(processes, "time.sleep(1); found = None"))
        await asyncio.sleep(0.1)
        await processes.stop()
        await asked

        assert reapers() == []

    checked(settings(tmp_path / "data", "trusted"), test)


@needs_bubblewrap
def test_the_servers_own_code_and_that_of_users_have_processes_of_their_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    body = f"found = [Path({str(data)!r}, 'secret').exists(), os.getuid(), os.getpid() < 100]"

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=True)
        processes.expect(trusted=False)
        while len(found := reapers()) < 2:
            await asyncio.sleep(0.02)

        inside = await answer(processes, body)
        outside = await answer(processes, body, trusted=True)

        assert len(found) == 2
        assert inside == {"waited": True, "found": [False, 1000, True]}
        assert outside["waited"]
        assert outside["found"][0]

    checked(settings(data, "sandboxed"), test)


@pytest.mark.parametrize("own", [True, False], ids=["own", "source"])
def test_a_report_of_a_process_that_waited_is_that_of_a_new_one(
    own: bool,
    mode: Literal["trusted", "sandboxed"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # a report ignores it

    async def test(processes: CheckProcesses) -> None:
        new = await report(processes, own=own)
        (reaper,) = reapers()
        waited = await report(processes, own=own)

        assert not reaper.is_running()
        assert len(new["kernels"]) == (1 if own else 2)
        assert waited == new

    checked(settings(tmp_path / "data", mode), test)


def test_a_check_sees_the_variables_of_triton_that_the_server_was_given(
    mode: Literal["trusted", "sandboxed"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    body = "found = os.environ.get('TRITON_INTERPRET')"

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)

        assert await answer(processes, body) == {"waited": True, "found": "1"}

    checked(settings(tmp_path / "data", mode), test)


def test_memory_is_limited_as_in_a_new_process(tmp_path: Path) -> None:
    body = "kept = bytearray(b'x') * (3 << 29); time.sleep(60)"

    async def test(processes: CheckProcesses) -> None:
        processes.expect(trusted=False)
        with pytest.raises(OneShotError, match="took more than 1073741824 bytes of memory"):
            await answer(processes, body)

    checked(settings(tmp_path / "data", "trusted", job_memory_bytes=1 << 30), test)
