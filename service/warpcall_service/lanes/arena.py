"""The memory that calls use: one region that a lane shares with its worker process.

Each call gets a part of the region, a slot. The region is a memfd, so that it has no name that
could clash or be left behind, and a worker process maps it by its descriptor. It outlives the
process: a new process maps the same bytes.

The last part of the arena, its reserve, is for small calls, which find memory there however much
large calls hold or wait for. A user may have as much of the reserve as is left free, so that users
who each hold all that they may still leave some to the next user. Small calls use the main part,
too, but not while a large call waits for it.

Large calls get memory for their outputs only once their inputs are here: see `lanes/deferred.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from warpcall.errors import Busy, Problem, TooLarge, sizes
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.arena_memory import ArenaMemory
from warpcall_service.lanes.deferred import DeferredAllocations
from warpcall_service.lanes.fair_queue import FairQueue, QueueEntry
from warpcall_service.lanes.free_ranges import FreeRanges, round_up
from warpcall_service.lanes.slot import Slot

LINE_BYTES = 64  # a cache line, the alignment of small slots
PAGE_ALIGNED_BYTES = 64 << 10  # slots of this size and more begin on a page
MAX_RETRY_AFTER_S = 60.0
USER_SHARE = 0.75  # of an arena for one user in several slots; the rest is for other users
SMALL_CALLS = 64  # small calls of the largest size that fit in the reserve together


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Allocated and free bytes, and the number of requests that wait."""

    used: int
    free: int
    waiting: int


_SlotFuture = asyncio.Future[Slot]


@dataclass(frozen=True, slots=True)
class _Request:
    """A slot that a caller waits for: see `Arena.acquire`."""

    nbytes: int
    deferred_nbytes: int
    slot: _SlotFuture


_Queue = FairQueue[_Request]
_Entry = QueueEntry[_Request]
_Allocate = Callable[[str, int, int], Slot | None]  # for a user: bytes, and deferred bytes


class Arena:
    """A shared region of at least `nbytes` bytes, a whole number of pages.

    Args:
        share: the part of the arena that a user may have in several slots.
        reserve: bytes at the end that only small calls may use.
        max_waiting: the most small calls that may wait, and the most large calls.

    Attributes:
        memory: the region
        max_call_nbytes: the most bytes that one call may use.
        max_small_nbytes: the most bytes that a small call may use.
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
        reserve_nbytes = self.nbytes - self.max_call_nbytes
        self.max_small_nbytes = reserve_nbytes // SMALL_CALLS if reserve else -1
        self._share = share
        self._max_waiting = max_waiting
        self.memory = ArenaMemory(self.nbytes, lambda: bool(self._allocated))
        self._main = FreeRanges(0, self.max_call_nbytes)
        self._reserve = FreeRanges(self.max_call_nbytes, self.nbytes)
        # Bytes by user, for users who have some: all, with deferred ones, and those in the reserve.
        self._allocated: dict[str, int] = {}
        self._allocated_reserve: dict[str, int] = {}
        self._deferred = DeferredAllocations(self.max_call_nbytes)
        self._deferred_waiters: deque[tuple[Slot, _SlotFuture]] = deque()
        self._large: _Queue = FairQueue()
        self._small: _Queue = FairQueue()
        self._mean_allocated_s = 0.0

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str = "",
        *,
        deferred_nbytes: int = 0,
        urgent: bool = False,
    ) -> Slot:
        """Allocate a slot, if necessary after a wait.

        Users are served in fair order, and the requests of one user in the order in which they
        came. No large call overtakes another: otherwise smaller ones could keep a larger one
        waiting for ever. Small calls wait only for small ones, as long as the reserve has room.

        Args:
            deferred_nbytes: bytes that `acquire_deferred` will allocate later beside the slot.
            urgent: serve this request before all that are not urgent.

        Raises:
            TooLarge: one call may not use so much.
            Busy: no memory was freed within `timeout_s`, or too many requests wait.
        """
        if _whole_pages(nbytes) + _whole_pages(deferred_nbytes) > self.max_call_nbytes:
            most, got = sizes(self.max_call_nbytes, nbytes + deferred_nbytes)
            raise TooLarge(
                f"inputs and outputs of a call must fit in {most} together, "
                f"which is arena_bytes less a reserve for small calls, got {got}",
                field="body",
            )
        # A small call has all its memory at once: the reserve defers nothing.
        small = not deferred_nbytes and nbytes <= self.max_small_nbytes
        queue = self._small if small else self._large
        slot = self._acquire_at_once(small, user, nbytes, deferred_nbytes)
        if slot is not None:
            return slot
        request = _Request(nbytes, deferred_nbytes, asyncio.get_running_loop().create_future())
        entry = queue.enqueue(user, nbytes + deferred_nbytes, request, urgent=urgent)
        self._serve_waiting()
        if queue.count > self._max_waiting and not urgent and not request.slot.done():
            queue.remove(entry)
            raise Busy(
                f"{queue.count} calls wait for memory already, no more may wait", retry_after_s=1
            )
        remove = functools.partial(self._remove, queue, entry)
        return await self._wait(request.slot, entry.nbytes, timeout_s, remove)

    def acquire_at_once(self, nbytes: int, user: str) -> Slot | None:
        """Allocate a slot as `acquire`; None if that must wait, or `acquire` would refuse it."""
        if _whole_pages(nbytes) > self.max_call_nbytes:
            return None
        return self._acquire_at_once(nbytes <= self.max_small_nbytes, user, nbytes, 0)

    def _acquire_at_once(
        self, small: bool, user: str, nbytes: int, deferred_nbytes: int
    ) -> Slot | None:
        queue = self._small if small else self._large
        if queue.count:
            return None
        allocate = self._allocate_small if small else self._allocate_large
        slot = allocate(user, nbytes, deferred_nbytes)
        if slot is not None:
            queue.charge(user, nbytes + deferred_nbytes)
        return slot

    async def acquire_deferred(self, source: Slot, timeout_s: float) -> Slot:
        """Allocate the deferred bytes of `source` as a slot of their own.

        Raises:
            Busy: the memory was not freed within `timeout_s`.
        """
        if not self._deferred_waiters:
            slot = self._allocate_deferred(source)
            if slot is not None:
                return slot
        waiter = source, asyncio.get_running_loop().create_future()
        self._deferred_waiters.append(waiter)
        self._serve_waiting()
        remove = functools.partial(self._remove_deferred, waiter)
        return await self._wait(waiter[1], source.deferred_nbytes, timeout_s, remove)

    def stats(self) -> ArenaStats:
        """Current use of the arena."""
        free = self._main.free_nbytes + self._reserve.free_nbytes
        return ArenaStats(self.nbytes - free, free, self.waiting)

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self._large.count + self._small.count + len(self._deferred_waiters)

    def nbytes_of(self, user: str) -> int:
        """Bytes that the user has, deferred ones included, or waits for."""
        has = self._allocated.get(user, 0)
        for queue in (self._large, self._small):
            if queue.count:
                has += queue.nbytes_of(user)
        return has

    def refill_s(self, user: str, nbytes: int) -> float:
        """Estimate the seconds until the user has `nbytes` fewer, from the last slots' times."""
        has = self.nbytes_of(user)
        return min(self._mean_allocated_s * nbytes / has, MAX_RETRY_AFTER_S) if has else 0.0

    def refuse_waiting(self, problem: Problem) -> None:
        """End all waits with `problem`."""
        waiting = [request.slot for request in (*self._large.clear(), *self._small.clear())]
        waiting += [future for _, future in self._deferred_waiters]
        self._deferred_waiters.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(problem)

    def _within_share(self, user: str, nbytes: int) -> bool:
        """Whether the user may have `nbytes` more; a single slot may have any size."""
        allocated = self._allocated.get(user, 0)
        return not allocated or allocated + nbytes <= self._share(user) * self.nbytes

    def _main_is_open(self) -> bool:
        """Whether no request waits for the main part."""
        return not self._deferred_waiters and not self._large.count

    def _allocate_small(self, user: str, nbytes: int, deferred_nbytes: int = 0) -> Slot | None:
        """Allocate from the main part if no request waits for it, else from the reserve."""
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
        """Allocate from the main part, unless a deferred allocation waits for it."""
        if self._deferred_waiters or not self._within_share(user, nbytes + deferred_nbytes):
            return None
        return self._allocate(self._main, user, nbytes, deferred_nbytes)

    def _allocate(
        self, part: FreeRanges, user: str, nbytes: int, deferred_nbytes: int = 0
    ) -> Slot | None:
        alignment = mmap.PAGESIZE if deferred_nbytes or nbytes >= PAGE_ALIGNED_BYTES else LINE_BYTES
        size = round_up(max(nbytes, 1), alignment)
        offset = part.find(size, alignment)
        if offset is None:
            return None
        if deferred_nbytes and not self._deferred.is_safe(deferred_nbytes, offset, offset + size):
            return None
        part.allocate(offset, offset + size)
        self.memory.touch(offset, offset + size)
        view = self.memory.view[offset : offset + nbytes]
        slot = Slot(self, user, view, offset, offset + size, nbytes)
        self._allocated[user] = self._allocated.get(user, 0) + nbytes + deferred_nbytes
        if deferred_nbytes:
            slot.deferred_nbytes = deferred_nbytes
            self._deferred.add(slot)
        return slot

    def free(self, slot: Slot, allocated_s: float) -> None:
        """Free the memory of `slot`, which was allocated for this time. Only `Slot` calls this."""
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
            # The user's sum has these bytes twice now: as deferred ones, and as a slot.
            _subtract(self._allocated, source.user, source.deferred_nbytes)
            source.deferred_nbytes = 0
            self._deferred.discard(source)
        return slot

    def _serve(self, queue: _Queue, entry: _Entry, allocate: _Allocate) -> bool:
        """Allocate for `entry`, or remove it if its caller has left; False if there is no room."""
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

    def _remove(self, queue: _Queue, entry: _Entry) -> None:
        """Remove `entry`, and serve those behind it, which may fit now."""
        queue.remove(entry)
        self._serve_waiting()

    def _remove_deferred(self, waiter: tuple[Slot, _SlotFuture]) -> None:
        with contextlib.suppress(ValueError):  # refuse_waiting removed it
            self._deferred_waiters.remove(waiter)
        self._serve_waiting()

    async def _wait(
        self, future: _SlotFuture, nbytes: int, timeout_s: float, remove: Callable[[], None]
    ) -> Slot:
        """Wait for a slot; `remove` takes the request out if the wait times out or is cancelled."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, self._time_out, future, nbytes, timeout_s, remove)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                remove()
            elif future.exception() is None:
                future.result().release()  # allocated just before the cancellation
            raise
        finally:
            timer.cancel()

    def _time_out(
        self, future: _SlotFuture, nbytes: int, timeout_s: float, remove: Callable[[], None]
    ) -> None:
        if not future.done():
            future.set_exception(self._busy(nbytes, timeout_s))
            remove()

    def _busy(self, nbytes: int, timeout_s: float) -> Busy:
        """The problem of a wait that timed out.

        Retry-After is the time in which the waiting requests are served: they fill the arena so
        many times, and a fill takes as long as slots were allocated of late.
        """
        waiting_nbytes = self._large.nbytes + self._small.nbytes
        wait_s = min(
            max(1.0, self._mean_allocated_s * waiting_nbytes / self.nbytes), MAX_RETRY_AFTER_S
        )
        return Busy(
            f"no {nbytes} bytes of memory came free within {timeout_s:g} s", retry_after_s=wait_s
        )


def _whole_pages(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return round_up(nbytes, mmap.PAGESIZE)


def _subtract(counts: dict[str, int], user: str, nbytes: int) -> None:
    left = counts.get(user, 0) - nbytes
    if left:
        counts[user] = left
    else:
        counts.pop(user, None)


def share_of(user: str) -> float:
    """The part of an arena that a user may have in several slots. Without keys all are LOCAL."""
    return 1.0 if user == LOCAL.name else USER_SHARE
