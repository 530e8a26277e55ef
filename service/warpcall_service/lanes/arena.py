"""The memory that calls use: one region that a lane shares with its worker process.

Each call gets a part of the region, a slot. The region is a memfd, so that it has no name that
could clash or be left behind, and a worker process maps it by its descriptor. It outlives the
process: a new process maps the same bytes.

The last part of the arena, its reserve, is for small calls, which find memory there however much
large calls hold or wait for. A user may have as much of the reserve as is left free, so that users
who each hold all that they may still leave some to the next user. Small calls use the main part,
too, but not while a large call waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from warpcall.errors import Busy, Problem, TooLarge, sizes
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.arena_memory import ArenaMemory
from warpcall_service.lanes.fair_queue import FairQueue, QueueEntry
from warpcall_service.lanes.free_ranges import FreeRanges, round_up

LINE_BYTES = 64  # a cache line, the alignment of small slots
PAGE_ALIGNED_BYTES = 64 << 10  # slots of this size and more begin on a page
MAX_RETRY_AFTER_S = 60.0
USER_SHARE = 0.75  # of an arena for one user in several slots; the rest is for other users
SMALL_CALLS = 64  # small calls of the largest size that fit in the reserve together


@dataclass(eq=False, slots=True)
class Slot:
    """A piece of an arena that is allocated to one call, with a count of references.

    The code that acquired the slot calls `release` once it needs the slot no more. A lane that
    works on the slot meanwhile has a reference of its own, from `retain` to `release_retained`.
    The memory is free again when no reference is left.

    Attributes:
        arena: the arena to which the slot belongs.
        user: name of the user whose call it is.
        view: the slot's bytes, writable; unusable after `release`.
        offset: the slot's first byte in the arena.
        end: the byte after the slot's last in the arena, padding included.
        nbytes: the number of bytes that were asked for.
    """

    arena: Arena
    user: str
    view: memoryview
    offset: int
    end: int
    nbytes: int
    _allocated_at: float = field(default_factory=time.monotonic)
    _references: int = 1
    _released: bool = False

    def release(self) -> None:
        """Drop the owner's reference. The operation is idempotent."""
        if not self._released:
            self._released = True
            with contextlib.suppress(BufferError):  # an array still uses the view's memory
                self.view.release()
            self.release_retained()

    def retain(self) -> None:
        """Add a reference, which `release_retained` drops."""
        self._references += 1

    def release_retained(self) -> None:
        """Drop a reference that `retain` added."""
        self._references -= 1
        if not self._references:
            self.arena.free(self, time.monotonic() - self._allocated_at)


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Allocated and free bytes, and the number of requests that wait."""

    used: int
    free: int
    waiting: int


_SlotFuture = asyncio.Future[Slot]


_Queue = FairQueue[_SlotFuture]
_Entry = QueueEntry[_SlotFuture]
_Allocate = Callable[[str, int], Slot | None]  # so many bytes for a user


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
        # Bytes by user, for users who have some: all, and those in the reserve.
        self._allocated: dict[str, int] = {}
        self._allocated_reserve: dict[str, int] = {}
        self._large: _Queue = FairQueue()
        self._small: _Queue = FairQueue()
        self._mean_allocated_s = 0.0

    async def acquire(
        self, nbytes: int, timeout_s: float, user: str = "", *, urgent: bool = False
    ) -> Slot:
        """Allocate a slot, if necessary after a wait.

        Users are served in fair order, and the requests of one user in the order in which they
        came. No large call overtakes another: otherwise smaller ones could keep a larger one
        waiting for ever. Small calls wait only for small ones, as long as the reserve has room.

        Args:
            urgent: serve this request before all that are not urgent.

        Raises:
            TooLarge: one call may not use so much.
            Busy: no memory was freed within `timeout_s`, or too many requests wait.
        """
        if _whole_pages(nbytes) > self.max_call_nbytes:
            most, got = sizes(self.max_call_nbytes, nbytes)
            raise TooLarge(
                f"inputs and outputs of a call must fit in {most} together, "
                f"which is arena_bytes less a reserve for small calls, got {got}",
                field="body",
            )
        slot = self._acquire_at_once(nbytes, user)
        if slot is not None:
            return slot
        queue = self._small if nbytes <= self.max_small_nbytes else self._large
        future: _SlotFuture = asyncio.get_running_loop().create_future()
        entry = queue.enqueue(user, nbytes, future, urgent=urgent)
        self._serve_waiting()
        if queue.count > self._max_waiting and not urgent and not future.done():
            queue.remove(entry)
            raise Busy(
                f"{queue.count} calls wait for memory already, no more may wait", retry_after_s=1
            )
        remove = functools.partial(self._remove, queue, entry)
        return await self._wait(future, nbytes, timeout_s, remove)

    def acquire_at_once(self, nbytes: int, user: str) -> Slot | None:
        """Allocate a slot as `acquire`; None if that must wait, or `acquire` would refuse it."""
        if _whole_pages(nbytes) > self.max_call_nbytes:
            return None
        return self._acquire_at_once(nbytes, user)

    def _acquire_at_once(self, nbytes: int, user: str) -> Slot | None:
        small = nbytes <= self.max_small_nbytes
        queue = self._small if small else self._large
        if queue.count:
            return None
        allocate = self._allocate_small if small else self._allocate_large
        slot = allocate(user, nbytes)
        if slot is not None:
            queue.charge(user, nbytes)
        return slot

    def stats(self) -> ArenaStats:
        """Current use of the arena."""
        free = self._main.free_nbytes + self._reserve.free_nbytes
        return ArenaStats(self.nbytes - free, free, self.waiting)

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self._large.count + self._small.count

    def nbytes_of(self, user: str) -> int:
        """Bytes that the user has or waits for."""
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
        for future in (*self._large.clear(), *self._small.clear()):
            if not future.done():
                future.set_exception(problem)

    def _within_share(self, user: str, nbytes: int) -> bool:
        """Whether the user may have `nbytes` more; a single slot may have any size."""
        allocated = self._allocated.get(user, 0)
        return not allocated or allocated + nbytes <= self._share(user) * self.nbytes

    def _allocate_small(self, user: str, nbytes: int) -> Slot | None:
        """Allocate from the main part if no large call waits for it, else from the reserve."""
        if not self._large.count and self._within_share(user, nbytes):
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

    def _allocate_large(self, user: str, nbytes: int) -> Slot | None:
        """Allocate from the main part."""
        return (
            self._allocate(self._main, user, nbytes) if self._within_share(user, nbytes) else None
        )

    def _allocate(self, part: FreeRanges, user: str, nbytes: int) -> Slot | None:
        alignment = mmap.PAGESIZE if nbytes >= PAGE_ALIGNED_BYTES else LINE_BYTES
        size = round_up(max(nbytes, 1), alignment)
        offset = part.find(size, alignment)
        if offset is None:
            return None
        part.allocate(offset, offset + size)
        self.memory.touch(offset, offset + size)
        view = self.memory.view[offset : offset + nbytes]
        slot = Slot(self, user, view, offset, offset + size, nbytes)
        self._allocated[user] = self._allocated.get(user, 0) + nbytes
        return slot

    def free(self, slot: Slot, allocated_s: float) -> None:
        """Free the memory of `slot`, which was allocated for this time. Only `Slot` calls this."""
        self._mean_allocated_s += (allocated_s - self._mean_allocated_s) * 0.1
        _subtract(self._allocated, slot.user, slot.nbytes)
        if slot.offset < self.max_call_nbytes:
            self._main.free(slot.offset, slot.end)
        else:
            self._reserve.free(slot.offset, slot.end)
            _subtract(self._allocated_reserve, slot.user, slot.nbytes)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        if self.waiting:
            self._serve_all()
        if not self._allocated and not self.waiting:
            self._large.reset()
            self._small.reset()

    def _serve_all(self) -> None:
        while entry := self._large.peek(self._entry_within_share):
            if not self._serve(self._large, entry, self._allocate_large):
                break
        passed: set[str] = set()
        while entry := self._small.peek(lambda small: small.user not in passed):
            if not self._serve(self._small, entry, self._allocate_small):
                if entry.urgent:
                    break
                passed.add(entry.user)

    def _serve(self, queue: _Queue, entry: _Entry, allocate: _Allocate) -> bool:
        """Allocate for `entry`, or remove it if its caller has left; False if there is no room."""
        if entry.item.done():
            queue.remove(entry)
            return True
        slot = allocate(entry.user, entry.nbytes)
        if slot is None:
            return False
        entry.item.set_result(slot)
        queue.dequeue(entry)
        return True

    def _entry_within_share(self, entry: _Entry) -> bool:
        return self._within_share(entry.user, entry.nbytes)

    def _remove(self, queue: _Queue, entry: _Entry) -> None:
        """Remove `entry`, and serve those behind it, which may fit now."""
        queue.remove(entry)
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
