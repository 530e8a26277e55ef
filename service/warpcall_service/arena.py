"""The memory that calls live in: one region shared with a lane, lent out in slots.

The region is a memfd, so that it has no name to clash or to leave behind, and a lane maps it by its
descriptor. It outlives the lane's process: a new one maps the same bytes.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from warpcall.errors import Busy, Problem, TooLarge
from warpcall_service.fair import FairQueue, Waiting

LINE_BYTES = 64  # alignment of small slots: a cache line
LARGE_BYTES = 64 << 10  # from here on slots begin on a page
PREFAULT_BYTES = 64 << 20  # of pages made at once, 30 ms
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it
MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes lent and free, and how many requests wait."""

    used: int
    free: int
    waiting: int


class Slot:
    """A piece of an arena, lent to one call.

    The one who acquired it releases it. Whoever else works on it meanwhile (a lane) holds it, and
    it returns to the arena only when all have let go.

    Attributes:
        arena: where it is from.
        view: its bytes, writable; unusable after `release`.
        offset: where it begins in the arena.
        nbytes: as many as were asked for.
        user: on whose behalf.
    """

    __slots__ = (
        "_end",
        "_holds",
        "_lent_at",
        "_released",
        "arena",
        "nbytes",
        "offset",
        "user",
        "view",
    )

    def __init__(self, arena: Arena, user: str, view: memoryview, offset: int, end: int) -> None:
        self.arena = arena
        self.user = user
        self.view = view
        self.offset = offset
        self.nbytes = len(view)
        self._end = end
        self._lent_at = time.monotonic()
        self._holds = 1
        self._released = False

    def release(self) -> None:
        """Give it back; again is harmless. While a lane works on it, it stays lent."""
        if not self._released:
            self._released = True
            with contextlib.suppress(BufferError):  # an array made of it is still alive somewhere
                self.view.release()
            self.drop()

    def hold(self) -> None:
        """Keep it from returning to the arena until `drop`."""
        self._holds += 1

    def drop(self) -> None:
        """Let go of what `hold` kept."""
        self._holds -= 1
        if not self._holds:
            self.arena._give_back(self, self._end, time.monotonic() - self._lent_at)


_Waiter = Waiting[asyncio.Future[Slot]]


class Arena:
    """A shared region of at least `nbytes` bytes, a whole number of pages.

    Low addresses are lent first, so that a lightly used arena stays in few, warm pages.

    Args:
        share: how much of it a user may hold in several slots; one slot may have any size.

    Attributes:
        fd: the memfd, to hand to a lane's process.
    """

    def __init__(self, nbytes: int, share: Callable[[str], float] = lambda user: 1.0) -> None:
        self.nbytes = _round_up(nbytes, mmap.PAGESIZE)
        self._share = share
        self.fd = os.memfd_create("warpcall-arena")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._memory = memoryview(self._map)
        self._free = [(0, self.nbytes)]  # (begin, end) in order, never adjacent
        self._lent: dict[str, int] = {}  # bytes by user, of those who have some
        self._queue: FairQueue[asyncio.Future[Slot]] = FairQueue()
        self._mean_lent_s = 0.0
        self._stopping = False

    async def acquire(
        self, nbytes: int, timeout_s: float, user: str = "", *, urgent: bool = False
    ) -> Slot:
        """A slot; users in fair order, each first come, first served, `urgent` ones before others.

        Nobody overtakes: small requests would otherwise keep a large one waiting for ever.

        Raises:
            TooLarge: more than the arena has.
            Busy: none came free within `timeout_s`.
        """
        if nbytes > self.nbytes:
            raise TooLarge(
                f"inputs and outputs of a call must fit in {self.nbytes} bytes together, "
                f"got {nbytes}",
                field="body",
            )
        if not self._queue.count and self._may_have(user, nbytes):
            slot = self._lend(user, nbytes)
            if slot is not None:
                self._queue.charge(user, nbytes)
                return slot
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Slot] = loop.create_future()
        waiter = self._queue.push(user, nbytes, future, urgent=urgent)
        self._serve_waiting()
        timer = loop.call_later(timeout_s, self._give_up, waiter, timeout_s)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                if future.exception() is None:
                    future.result().release()  # lent in the moment of the cancellation
            else:
                self._forget(waiter)
            raise
        finally:
            timer.cancel()

    def stats(self) -> ArenaStats:
        """How full it is."""
        free = sum(end - begin for begin, end in self._free)
        return ArenaStats(self.nbytes - free, free, self.waiting)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._queue.count

    def nbytes_of(self, user: str) -> int:
        """Bytes that the user has, or waits for."""
        lent = self._lent.get(user, 0)
        return lent + self._queue.nbytes_of(user) if self._queue.count else lent

    def refill_s(self, user: str, nbytes: int) -> float:
        """Time until the user has so many bytes fewer, if calls go on as of late."""
        has = self.nbytes_of(user)
        return min(self._mean_lent_s * nbytes / has, MAX_RETRY_AFTER_S) if has else 0.0

    def refuse_waiting(self, problem: Problem) -> None:
        """End every wait with `problem`."""
        for future in self._queue.clear():
            if not future.done():
                future.set_exception(problem)

    def prefault(self) -> None:
        """Make its pages now: met on the way they cost a body as much again as its transfer.

        Blocks for some 0.5 s a GB; call it from a thread.
        """
        prefault(self._map, lambda: self._stopping)

    def stop_prefault(self) -> None:
        """Make `prefault` return soon, in whichever thread it runs."""
        self._stopping = True

    def close(self) -> None:
        """Unmap it, or leave that to the last view of it that is still about."""
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self._memory.release()
            self._map.close()

    def _may_have(self, user: str, nbytes: int) -> bool:
        """Whether this is within the user's share."""
        lent = self._lent.get(user, 0)
        return not lent or lent + nbytes <= self._share(user) * self.nbytes

    def _lend(self, user: str, nbytes: int) -> Slot | None:
        """First fit."""
        alignment = LINE_BYTES if nbytes < LARGE_BYTES else mmap.PAGESIZE
        size = _round_up(max(nbytes, 1), alignment)
        for i, (begin, end) in enumerate(self._free):
            offset = _round_up(begin, alignment)
            if offset + size <= end:
                rest = ((begin, offset), (offset + size, end))
                self._free[i : i + 1] = [piece for piece in rest if piece[0] < piece[1]]
                view = self._memory[offset : offset + nbytes]
                self._lent[user] = self._lent.get(user, 0) + nbytes
                return Slot(self, user, view, offset, offset + size)
        return None

    def _give_back(self, slot: Slot, end: int, lent_s: float) -> None:
        self._mean_lent_s += (lent_s - self._mean_lent_s) * 0.1
        begin = slot.offset
        left = self._lent.get(slot.user, 0) - slot.nbytes
        if left:
            self._lent[slot.user] = left
        else:
            self._lent.pop(slot.user, None)
        i = bisect.bisect(self._free, (begin, end))
        low, high = i, i
        if i < len(self._free) and self._free[i][0] == end:
            end, high = self._free[i][1], i + 1
        if i and self._free[i - 1][1] == begin:
            begin, low = self._free[i - 1][0], i - 1
        self._free[low:high] = [(begin, end)]
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while waiter := self._queue.first(self._within_share):
            if not waiter.item.done():
                slot = self._lend(waiter.user, waiter.nbytes)
                if slot is None:
                    return
                waiter.item.set_result(slot)
                self._queue.serve(waiter)
            else:
                self._queue.withdraw(waiter)
        if not self._queue.count and not self._lent:
            self._queue.rest()

    def _within_share(self, waiter: _Waiter) -> bool:
        return self._may_have(waiter.user, waiter.nbytes)

    def _forget(self, waiter: _Waiter) -> None:
        """Take `waiter` out; whoever waited behind it may have room."""
        self._queue.withdraw(waiter)
        self._serve_waiting()

    def _give_up(self, waiter: _Waiter, timeout_s: float) -> None:
        if waiter.item.done():
            return
        waiter.item.set_exception(
            Busy(
                f"no {waiter.nbytes} bytes of memory came free within {timeout_s:g} s",
                retry_after_s=self._expected_wait_s(),
            )
        )
        self._forget(waiter)

    def _expected_wait_s(self) -> float:
        """Time until those who wait now are served: so many fills of the arena, each lent as long
        as slots were of late."""
        asked = self._queue.nbytes
        return min(max(1.0, self._mean_lent_s * asked / self.nbytes), MAX_RETRY_AFTER_S)


def prefault(mapping: mmap.mmap, stop: Callable[[], bool]) -> None:
    """Make the pages of a shared mapping, in steps, until `stop()`; what they hold is kept."""
    libc = ctypes.CDLL(None, use_errno=True)  # unlike mmap.madvise, it lets other threads run
    anchor = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(anchor)
    for offset in range(0, len(mapping), PREFAULT_BYTES):
        nbytes = min(PREFAULT_BYTES, len(mapping) - offset)
        if stop() or libc.madvise(
            ctypes.c_void_p(address + offset), ctypes.c_size_t(nbytes), MADV_POPULATE_WRITE
        ):
            return  # an older kernel makes them one by one, when they are first touched


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
