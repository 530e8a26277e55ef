"""The memory that calls live in: one region shared with a lane, lent out in slots.

The region is a memfd, so that it has no name to clash or to leave behind, and a lane maps it by its
descriptor. It outlives the lane's process: a new one maps the same bytes.

The last part of the arena, its reserve, is for small calls: whatever large calls hold or wait for,
small calls find room there. One user may have as much of the reserve as is left free, so that any
number of users who each hold all that they may still leave some to the next one. Small calls take
from the main part, too, but not while a large call waits for it.

Large calls take memory for their outputs only when their inputs are here: see `lanes/deferred.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from warpcall.errors import Busy, Problem, TooLarge
from warpcall_service.lanes.deferred import DeferredAllocations
from warpcall_service.lanes.fair_queue import FairQueue, QueueEntry
from warpcall_service.lanes.free_ranges import FreeRanges, round_up
from warpcall_service.lanes.prefault import prefault
from warpcall_service.lanes.slot import Slot

LINE_BYTES = 64  # alignment of small slots: a cache line
LARGE_BYTES = 64 << 10  # from here on slots begin on a page
MAX_RETRY_AFTER_S = 60.0
SMALL_CALLS = 64  # of the largest size that counts as small, that the reserve has room for


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes lent and free, and how many requests wait."""

    used: int
    free: int
    waiting: int


@dataclass(frozen=True, slots=True)
class _Request:
    """What somebody waits for: a slot of `nbytes`, with a promise of further bytes."""

    nbytes: int
    deferred_nbytes: int
    slot: asyncio.Future[Slot]


_Entry = QueueEntry[_Request]


class Arena:
    """A shared region of at least `nbytes` bytes, a whole number of pages.

    Args:
        share: how much of it a user may hold in several slots.
        reserve: bytes at its end that only small calls may have.
        max_waiting: small calls that may wait, and large ones.

    Attributes:
        fd: the memfd, to hand to a lane's process.
        max_call_nbytes: bytes that one call may have.
        max_small_nbytes: bytes up to which a call is small.
    """

    def __init__(
        self,
        nbytes: int,
        share: Callable[[str], float] = lambda user: 1.0,
        reserve: int = 0,
        max_waiting: int = 256,
    ) -> None:
        self.nbytes = round_up(nbytes, mmap.PAGESIZE)
        self.max_call_nbytes = self.nbytes - round_up(reserve, mmap.PAGESIZE)
        self.max_small_nbytes = (
            (self.nbytes - self.max_call_nbytes) // SMALL_CALLS if reserve else -1
        )
        self._share = share
        self._max_waiting = max_waiting
        self.fd = os.memfd_create("warpcall-arena")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._memory = memoryview(self._map)
        self._main = FreeRanges(0, self.max_call_nbytes)
        self._reserve = FreeRanges(self.max_call_nbytes, self.nbytes)
        self._allocated: dict[
            str, int
        ] = {}  # bytes by user, promises included, of those who have some
        self._allocated_reserve: dict[str, int] = {}  # of these the ones in the reserve
        self._deferred = DeferredAllocations(self.max_call_nbytes)
        self._deferred_waiters: deque[tuple[Slot, asyncio.Future[Slot]]] = deque()
        self._large: FairQueue[_Request] = FairQueue()
        self._small: FairQueue[_Request] = FairQueue()
        self._mean_allocated_s = 0.0
        self._stopping = False

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str = "",
        *,
        deferred_nbytes: int = 0,
        urgent: bool = False,
    ) -> Slot:
        """A slot; users in fair order, each first come, first served, `urgent` ones before others.

        Among large calls nobody overtakes: smaller ones would otherwise keep a larger one waiting
        for ever. Small calls wait for small ones only, as long as the reserve has room.

        Args:
            deferred_nbytes: bytes that `acquire_deferred` will give later, beside the slot.

        Raises:
            TooLarge: more than one call may have.
            Busy: none came free within `timeout_s`, or too many wait for it.
        """
        if _whole_pages(nbytes) + _whole_pages(deferred_nbytes) > self.max_call_nbytes:
            raise TooLarge(
                f"inputs and outputs of a call must fit in {self.max_call_nbytes} bytes together, which is "
                f"arena_bytes less a reserve for small calls, got {nbytes + deferred_nbytes}",
                field="body",
            )
        small = nbytes + deferred_nbytes <= self.max_small_nbytes
        queue = self._small if small else self._large
        if not queue.count:
            slot = (self._allocate_small if small else self._allocate_large)(
                user, nbytes, deferred_nbytes
            )
            if slot is not None:
                queue.charge(user, nbytes + deferred_nbytes)
                return slot
        loop = asyncio.get_running_loop()
        request = _Request(nbytes, deferred_nbytes, loop.create_future())
        entry = queue.enqueue(user, nbytes + deferred_nbytes, request, urgent=urgent)
        self._serve_waiting()
        if queue.count > self._max_waiting and not urgent and not request.slot.done():
            queue.remove(entry)
            raise Busy(
                f"{queue.count} calls wait for memory already, no more may wait", retry_after_s=1
            )
        timer = loop.call_later(timeout_s, self._time_out, queue, entry, timeout_s)
        try:
            return await _wait_for_slot(request.slot, lambda: self._remove(queue, entry))
        finally:
            timer.cancel()

    async def acquire_deferred(self, source: Slot, timeout_s: float) -> Slot:
        """What was promised with `source`, as a slot of its own.

        Raises:
            Busy: others kept it for longer than `timeout_s`.
        """
        if not self._deferred_waiters:
            slot = self._allocate_deferred(source)
            if slot is not None:
                return slot
        loop = asyncio.get_running_loop()
        waiter = source, loop.create_future()
        self._deferred_waiters.append(waiter)
        self._serve_waiting()
        timer = loop.call_later(timeout_s, self._time_out_deferred, waiter, timeout_s)
        try:
            return await _wait_for_slot(waiter[1], lambda: self._remove_deferred(waiter))
        finally:
            timer.cancel()

    def stats(self) -> ArenaStats:
        """How full it is."""
        free = self._main.free_nbytes + self._reserve.free_nbytes
        return ArenaStats(self.nbytes - free, free, self.waiting)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._large.count + self._small.count + len(self._deferred_waiters)

    def nbytes_of(self, user: str) -> int:
        """Bytes that the user has, was promised, or waits for."""
        has = self._allocated.get(user, 0)
        for queue in (self._large, self._small):
            if queue.count:
                has += queue.nbytes_of(user)
        return has

    def refill_s(self, user: str, nbytes: int) -> float:
        """Time until the user has so many bytes fewer, if calls go on as of late."""
        has = self.nbytes_of(user)
        return min(self._mean_allocated_s * nbytes / has, MAX_RETRY_AFTER_S) if has else 0.0

    def refuse_waiting(self, problem: Problem) -> None:
        """End every wait with `problem`."""
        waiting = [request.slot for request in (*self._large.clear(), *self._small.clear())]
        waiting += [future for _, future in self._deferred_waiters]
        self._deferred_waiters.clear()
        for future in waiting:
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

    def _within_share(self, user: str, nbytes: int) -> bool:
        """Whether this is within the user's share."""
        allocated = self._allocated.get(user, 0)
        return not allocated or allocated + nbytes <= self._share(user) * self.nbytes

    def _main_is_open(self) -> bool:
        """Whether nobody waits for the main part."""
        return not self._deferred_waiters and not self._large.count

    def _allocate_small(self, user: str, nbytes: int, deferred_nbytes: int = 0) -> Slot | None:
        """From the main part if nobody waits for it, else from the reserve."""
        if self._main_is_open() and self._within_share(user, nbytes):
            slot = self._allocate(self._main, user, nbytes)
            if slot is not None:
                return slot
        has = self._allocated_reserve.get(user, 0)
        if has + nbytes > self._reserve.free_nbytes - nbytes:
            return None
        slot = self._allocate(self._reserve, user, nbytes)
        if slot is not None:
            self._allocated_reserve[user] = has + nbytes
        return slot

    def _allocate_large(self, user: str, nbytes: int, deferred_nbytes: int) -> Slot | None:
        """From the main part, if nobody has an older claim to it."""
        if self._deferred_waiters or not self._within_share(user, nbytes + deferred_nbytes):
            return None
        return self._allocate(self._main, user, nbytes, deferred_nbytes)

    def _allocate(
        self, part: FreeRanges, user: str, nbytes: int, deferred_nbytes: int = 0
    ) -> Slot | None:
        alignment = mmap.PAGESIZE if deferred_nbytes or nbytes >= LARGE_BYTES else LINE_BYTES
        size = round_up(max(nbytes, 1), alignment)
        offset = part.find(size, alignment)
        if offset is None:
            return None
        if deferred_nbytes and not self._deferred.is_safe(deferred_nbytes, offset, offset + size):
            return None
        part.allocate(offset, offset + size)
        view = self._memory[offset : offset + nbytes]
        slot = Slot(self, user, view, offset, offset + size)
        self._allocated[user] = self._allocated.get(user, 0) + nbytes + deferred_nbytes
        if deferred_nbytes:
            slot.deferred_nbytes = deferred_nbytes
            self._deferred.add(slot)
        return slot

    def free(self, slot: Slot, allocated_s: float) -> None:
        """All have let go of `slot`, which was lent for this time; only `Slot` calls it."""
        self._mean_allocated_s += (allocated_s - self._mean_allocated_s) * 0.1
        _subtract(self._allocated, slot.user, slot.nbytes + slot.deferred_nbytes)
        self._deferred.discard(slot)
        if slot.offset < self.max_call_nbytes:
            self._main.free(slot.offset, slot.end)
        else:
            self._reserve.free(slot.offset, slot.end)
            _subtract(self._allocated_reserve, slot.user, slot.nbytes)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        if self._deferred_waiters or self._large.count or self._small.count:
            self._serve_all()
        if not self._allocated and not self.waiting:
            self._large.reset()
            self._small.reset()

    def _serve_all(self) -> None:
        self._serve_deferred()
        while entry := self._large.peek(self._entry_within_share):
            if not self._serve(self._large, entry, self._allocate_large):
                break
        passed: set[str] = set()
        while entry := self._small.peek(lambda small: small.user not in passed):
            if not self._serve(self._small, entry, self._allocate_small):
                if entry.urgent:
                    break
                passed.add(entry.user)

    def _serve_deferred(self) -> None:
        while self._deferred_waiters:
            source, future = self._deferred_waiters[0]
            if not future.done():
                slot = self._allocate_deferred(source)
                if slot is None:
                    return
                future.set_result(slot)
            self._deferred_waiters.popleft()

    def _allocate_deferred(self, source: Slot) -> Slot | None:
        slot = self._allocate(self._main, source.user, source.deferred_nbytes)
        if slot is not None:
            _subtract(self._allocated, source.user, source.deferred_nbytes)  # it was counted before
            source.deferred_nbytes = 0
            self._deferred.discard(source)
        return slot

    def _serve(
        self,
        queue: FairQueue[_Request],
        entry: _Entry,
        allocate: Callable[[str, int, int], Slot | None],
    ) -> bool:
        """Give `entry` its slot, or take it out if it waits no more; False if there is no room."""
        request = entry.item
        if request.slot.done():
            queue.remove(entry)
            return True
        slot = allocate(entry.user, request.nbytes, request.deferred_nbytes)
        if slot is None:
            return False
        request.slot.set_result(slot)
        queue.dequeue(entry)
        return True

    def _entry_within_share(self, entry: _Entry) -> bool:
        return self._within_share(entry.user, entry.nbytes)

    def _remove(self, queue: FairQueue[_Request], entry: _Entry) -> None:
        """Take `entry` out; whoever waited behind it may have room."""
        queue.remove(entry)
        self._serve_waiting()

    def _remove_deferred(self, waiter: tuple[Slot, asyncio.Future[Slot]]) -> None:
        with contextlib.suppress(ValueError):  # it was refused with all others
            self._deferred_waiters.remove(waiter)
        self._serve_waiting()

    def _time_out(self, queue: FairQueue[_Request], entry: _Entry, timeout_s: float) -> None:
        if not entry.item.slot.done():
            entry.item.slot.set_exception(self._busy(entry.nbytes, timeout_s))
            self._remove(queue, entry)

    def _time_out_deferred(
        self, waiter: tuple[Slot, asyncio.Future[Slot]], timeout_s: float
    ) -> None:
        slot, future = waiter
        if not future.done():
            future.set_exception(self._busy(slot.deferred_nbytes, timeout_s))
            self._remove_deferred(waiter)

    def _busy(self, nbytes: int, timeout_s: float) -> Busy:
        """Memory did not come free; it will when those who wait now are served: so many fills of the
        arena, each lent as long as slots were of late."""
        asked = self._large.nbytes + self._small.nbytes
        wait_s = min(max(1.0, self._mean_allocated_s * asked / self.nbytes), MAX_RETRY_AFTER_S)
        return Busy(
            f"no {nbytes} bytes of memory came free within {timeout_s:g} s", retry_after_s=wait_s
        )


async def _wait_for_slot(future: asyncio.Future[Slot], remove: Callable[[], None]) -> Slot:
    """The slot that `future` will have; gives it back, or calls `remove`, if it is cancelled."""
    try:
        return await future
    except asyncio.CancelledError:
        if not future.done() or future.cancelled():
            remove()
        elif future.exception() is None:
            future.result().release()  # lent in the moment of the cancellation
        raise


def _whole_pages(nbytes: int) -> int:
    """The bytes of the whole pages that a slot takes."""
    return round_up(nbytes, mmap.PAGESIZE)


def _subtract(counts: dict[str, int], user: str, nbytes: int) -> None:
    left = counts.get(user, 0) - nbytes
    if left:
        counts[user] = left
    else:
        counts.pop(user, None)
