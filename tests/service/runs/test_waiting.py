"""A place for a process that waits: who gets it, and when it is ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from warpcall_bench.runs import waiting as waiting_module
from warpcall_bench.runs.waiting import Waiting


class Sleeper:
    """A process that sleeps."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "600"])

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    async def end(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


async def taken(wait_s: float, how: str, pause_s: float = 0.0) -> tuple[bool, bool]:
    """Whether a process that was started as "so" is taken, and whether it runs then."""
    waiting, one = Waiting[Sleeper](wait_s), Sleeper()
    assert waiting.wants_one
    waiting.put(one, "so")
    assert not waiting.wants_one
    await asyncio.sleep(pause_s)
    found = waiting.take(how)
    assert found in (None, one)
    assert waiting.take(how) is None, "it is used once"
    await waiting.stop()
    runs = one.runs
    await one.end()
    return found is one, runs


def test_a_process_that_waits_is_taken_once() -> None:
    assert asyncio.run(taken(60.0, "so")) == (True, True)


def test_one_that_was_started_in_another_way_is_ended() -> None:
    assert asyncio.run(taken(60.0, "otherwise")) == (False, False)


def test_one_that_nothing_uses_is_ended_after_a_while() -> None:
    assert asyncio.run(taken(0.05, "so", pause_s=0.5)) == (False, False)


def test_one_that_has_ended_by_itself_is_not_taken() -> None:
    async def play() -> Sleeper | None:
        waiting, one = Waiting[Sleeper](60.0), Sleeper()
        waiting.put(one, "so")
        await one.end()
        found = waiting.take("so")
        await waiting.stop()
        return found

    assert asyncio.run(play()) is None


def test_one_that_has_imported_an_older_library_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "some_library"
    library.mkdir()
    (library / "__init__.py").write_text("")
    (library / "kernels.py").write_text("A = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(waiting_module, "LIBRARY", "some_library")

    async def play(*, edits: bool) -> bool:
        waiting, one = Waiting[Sleeper](60.0), Sleeper()
        waiting.put(one, "so")
        if edits:
            os.utime(library / "kernels.py", (1, 1))
        found = waiting.take("so")
        await waiting.stop()
        await one.end()
        return found is one

    assert asyncio.run(play(edits=False))
    assert not asyncio.run(play(edits=True))


def test_none_waits_if_it_is_switched_off_or_after_the_end() -> None:
    async def play() -> list[bool]:
        off, on = Waiting[Sleeper](0.0), Waiting[Sleeper](60.0)
        before = on.wants_one
        await on.stop()
        return [off.wants_one, before, on.wants_one]

    assert asyncio.run(play()) == [False, True, False]


def test_the_end_waits_for_the_process_that_waited() -> None:
    async def play() -> bool:
        waiting, one = Waiting[Sleeper](60.0), Sleeper()
        waiting.put(one, "so")
        await waiting.stop()
        return one.runs

    assert not asyncio.run(play())
