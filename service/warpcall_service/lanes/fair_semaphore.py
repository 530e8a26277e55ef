"""A semaphore that is fair to users, and a copy that lets other requests run in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpcall_service.lanes.fair_queue import FairQueue

COPY_BYTES = 1 << 20  # copied without a pause, in 0.2 ms


async def copy_in_chunks(target: memoryview, source: memoryview) -> None:
    """Copy to the start of `target`, and let other tasks run after each chunk."""
    for begin in range(0, len(source), COPY_BYTES):
        if begin:
            await asyncio.sleep(0)
        piece = source[begin : begin + COPY_BYTES]
        target[begin : begin + len(piece)] = piece


class FairSemaphore:
    """Admits `count` holders at a time; others wait in the order of a `FairQueue`."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def acquire(self, user: str, nbytes: int) -> AsyncIterator[None]:
        """Hold the semaphore, for a task of `user` that costs `nbytes`."""
        if self._free:
            self._free -= 1
            self._queue.charge(user, nbytes)
        else:
            await self._wait(user, nbytes)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, user: str, nbytes: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        entry = self._queue.enqueue(user, nbytes, granted)
        try:
            await granted
        except asyncio.CancelledError:
            self._queue.remove(entry)
            if granted.done() and not granted.cancelled():
                self._release()  # granted just before the cancellation
            raise

    def _release(self) -> None:
        while entry := self._queue.peek():
            if entry.item.cancelled():  # the waiting task is about to leave
                self._queue.remove(entry)
                continue
            self._queue.dequeue(entry)
            entry.item.set_result(None)
            return
        self._free += 1
        if self._free == self._count:
            self._queue.reset()
