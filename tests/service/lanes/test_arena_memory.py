"""The memory of a CPU lane's arena is given back when the lane is idle, and never before."""

from __future__ import annotations

import asyncio
import os

import pytest

from warpcall_service.lanes import arena_memory
from warpcall_service.lanes.arena_memory import CHUNK_BYTES, ArenaMemory

NBYTES = 3 * CHUNK_BYTES + 4096
IDLE_S = 0.02


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_memory, "IDLE_S", IDLE_S)
    monkeypatch.setattr(arena_memory, "PAUSE_S", 0.0)


def held(memory: ArenaMemory) -> int:
    """Bytes of pages that exist."""
    return os.fstat(memory.fd).st_blocks * 512


def use(memory: ArenaMemory, begin: int, end: int) -> None:
    memory.touch(begin, end)
    memory.view[begin:end] = b"x" * (end - begin)


async def _until_held(memory: ArenaMemory, nbytes: int) -> None:
    async with asyncio.timeout(30):
        while held(memory) != nbytes:
            await asyncio.sleep(IDLE_S)


@pytest.mark.parametrize(
    ("begin", "end"),
    [(0, 10), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (0, NBYTES), (NBYTES - 1, NBYTES)],
)
def test_all_that_was_used_is_given_back_and_can_be_used_again(begin: int, end: int) -> None:
    async def play() -> None:
        memory = ArenaMemory(NBYTES, lambda: False)
        keeping = asyncio.create_task(memory.keep("cpu"))
        for _ in range(2):
            use(memory, begin, end)
            assert held(memory) > 0
            await _until_held(memory, 0)
            assert bytes(memory.view[begin : begin + 1]) == b"\0"
            memory.touch(begin, begin + 1)  # the look at it has made a page
        memory.stop()
        await keeping
        memory.close()

    asyncio.run(play())


def test_nothing_is_given_back_while_anything_is_allocated() -> None:
    async def play() -> None:
        is_used = True
        memory = ArenaMemory(NBYTES, lambda: is_used)
        keeping = asyncio.create_task(memory.keep("cpu"))
        use(memory, 0, NBYTES)
        before = held(memory)

        await asyncio.sleep(5 * IDLE_S)

        assert held(memory) == before
        assert bytes(memory.view) == b"x" * NBYTES
        is_used = False
        await _until_held(memory, 0)
        memory.stop()
        await keeping
        memory.close()

    asyncio.run(play())
