"""Checks of sources in processes that had imported torch before the check was asked for."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.service.runs.sandboxes import LIMIT_S, ROOT, needs_bubblewrap, settings
from tests.waiting import lives, until
from warpcall_bench.runs.one_shot import OneShotError
from warpcall_bench.runs.waiting_checks import WaitingChecks
from warpcall_bench.settings import BenchSettings

pytestmark = [needs_bubblewrap, pytest.mark.slow]
WHO = "import os, sys\nreturn [os.getuid(), 'torch' in sys.modules, os.listdir('/tmp'), os.listdir('/proc/self/fd')]"
LEAVE = "open('/tmp/mark', 'w').write('x')\nreturn True"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)


async def tried(checks: WaitingChecks, **codes: str) -> dict[str, Any]:
    request = json.dumps({"codes": codes, "values": {}}).encode()
    answer = await checks.run("tests.service.runs.attempt", request, LIMIT_S, 1 << 16)
    found: dict[str, Any] = json.loads(answer)
    return found


def reapers() -> list[psutil.Process]:
    """Reapers below this process."""
    children = psutil.Process().children()
    return [one for one in children if lives(one) and "runs.reaper" in " ".join(one.cmdline())]


def test_each_check_has_a_new_sandbox_that_was_started_before(tmp_path: Path) -> None:
    async def play() -> None:
        checks = WaitingChecks(settings(tmp_path / "data"), trusted=False)
        assert await tried(checks, leave=LEAVE) == {"leave": ["done", True]}
        (waiting,) = reapers()

        found = await tried(checks, who=WHO)

        (following,) = reapers()
        assert following.pid != waiting.pid
        assert following.create_time() > waiting.create_time()
        assert not lives(waiting)
        uid, has_torch, files, _ = found["who"][1]
        assert (uid, has_torch) == (1000, True)
        assert "mark" not in files, "nothing is left of the check before"
        await checks.stop()
        assert reapers() == []

    asyncio.run(play())


def test_a_process_that_dies_while_it_waits_fails_no_check(tmp_path: Path) -> None:
    async def play() -> None:
        checks = WaitingChecks(settings(tmp_path / "data"), trusted=False)
        await tried(checks, who=WHO)
        (waiting,) = reapers()
        for process in waiting.children(recursive=True):  # perhaps while it imports
            process.kill()

        found = await tried(checks, who=WHO)
        assert found["who"][0] == "done"
        await checks.stop()

    asyncio.run(play())


def test_one_whose_sandbox_would_be_another_one_now_is_not_used(tmp_path: Path) -> None:
    async def play() -> None:
        given = settings(tmp_path / "data")
        checks = WaitingChecks(given, trusted=False)
        await tried(checks, who=WHO)
        (waiting,) = reapers()
        changed = BenchSettings.model_validate({**given.model_dump(), "sandbox_tmp_bytes": 8 << 20})
        checks._settings = changed

        size = "import os\nfound = os.statvfs('/tmp')\nreturn found.f_blocks * found.f_frsize"
        found = await tried(checks, size=size)

        assert found == {"size": ["done", 8 << 20]}
        await checks.stop()
        assert not lives(waiting)

    asyncio.run(play())


def test_code_that_ends_its_process_has_no_answer_and_is_not_tried_again(tmp_path: Path) -> None:
    async def play() -> None:
        checks = WaitingChecks(settings(tmp_path / "data"), trusted=False)
        await tried(checks, who=WHO)
        kill = f"import os\nos.kill(os.getppid(), {int(signal.SIGKILL)})"
        with pytest.raises(OneShotError, match="ended before it had answered"):
            await tried(checks, kill=kill)
        await checks.stop()

    asyncio.run(play())
    until(lambda: not reapers(), "a reaper is left")
