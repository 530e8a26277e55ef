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
from warpcall_service.lanes.deferred import Promises
from warpcall_service.lanes.fair_queue import FairQueue, Waiting
from warpcall_service.lanes.free_ranges import Extents, round_up
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
    promise: int
    slot: asyncio.Future[Slot]


_Waiter = Waiting[_Request]


class Arena:
    """A shared region of at least `nbytes` bytes, a whole number of pages.

    Args:
        share: how much of it a user may hold in several slots.
        reserve: bytes at its end that only small calls may have.
        max_waiting: small calls that may wait, and large ones.

    Attributes:
        fd: the memfd, to hand to a lane's process.
        largest: bytes that one call may have.
        small: bytes up to which a call is small.
    """

    def __init__(
        self,
        nbytes: int,
        share: Callable[[str], float] = lambda user: 1.0,
        reserve: int = 0,
        max_waiting: int = 256,
    ) -> None:
        self.nbytes = round_up(nbytes, mmap.PAGESIZE)
        self.largest = self.nbytes - round_up(reserve, mmap.PAGESIZE)
        self.small = (self.nbytes - self.largest) // SMALL_CALLS if reserve else -1
        self._share = share
        self._max_waiting = max_waiting
        self.fd = os.memfd_create("warpcall-arena")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._memory = memoryview(self._map)
        self._main = Extents(0, self.largest)
        self._reserve = Extents(self.largest, self.nbytes)
        self._lent: dict[str, int] = {}  # bytes by user, promises included, of those who have some
        self._reserved: dict[str, int] = {}  # of these the ones in the reserve
        self._promises = Promises(self.largest)
        self._claims: deque[tuple[Slot, asyncio.Future[Slot]]] = deque()
        self._large: FairQueue[_Request] = FairQueue()
        self._small: FairQueue[_Request] = FairQueue()
        self._mean_lent_s = 0.0
        self._stopping = False

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str = "",
        *,
        promise: int = 0,
        urgent: bool = False,
    ) -> Slot:
        """A slot; users in fair order, each first come, first served, `urgent` ones before others.

        Among large calls nobody overtakes: smaller ones would otherwise keep a larger one waiting
        for ever. Small calls wait for small ones only, as long as the reserve has room.

        Args:
            promise: bytes that `claim` will give later, beside the slot.

        Raises:
            TooLarge: more than one call may have.
            Busy: none came free within `timeout_s`, or too many wait for it.
        """
        if _paged(nbytes) + _paged(promise) > self.largest:
            raise TooLarge(
                f"inputs and outputs of a call must fit in {self.largest} bytes together, which is "
                f"arena_bytes less a reserve for small calls, got {nbytes + promise}",
                field="body",
            )
        small = nbytes + promise <= self.small
        queue = self._small if small else self._large
        if not queue.count:
            slot = (self._lend_small if small else self._lend_large)(user, nbytes, promise)
            if slot is not None:
                queue.charge(user, nbytes + promise)
                return slot
        loop = asyncio.get_running_loop()
        request = _Request(nbytes, promise, loop.create_future())
        waiter = queue.push(user, nbytes + promise, request, urgent=urgent)
        self._serve_waiting()
        if queue.count > self._max_waiting and not urgent and not request.slot.done():
            queue.withdraw(waiter)
            raise Busy(
                f"{queue.count} calls wait for memory already, no more may wait", retry_after_s=1
            )
        timer = loop.call_later(timeout_s, self._give_up, queue, waiter, timeout_s)
        try:
            return await _granted(request.slot, lambda: self._forget(queue, waiter))
        finally:
            timer.cancel()

    async def claim(self, slot: Slot, timeout_s: float) -> Slot:
        """What was promised with `slot`, as a slot of its own.

        Raises:
            Busy: others kept it for longer than `timeout_s`.
        """
        if not self._claims:
            claimed = self._keep_promise(slot)
            if claimed is not None:
                return claimed
        loop = asyncio.get_running_loop()
        claim = slot, loop.create_future()
        self._claims.append(claim)
        self._serve_waiting()
        timer = loop.call_later(timeout_s, self._give_up_claim, claim, timeout_s)
        try:
            return await _granted(claim[1], lambda: self._forget_claim(claim))
        finally:
            timer.cancel()

    def stats(self) -> ArenaStats:
        """How full it is."""
        free = self._main.free + self._reserve.free
        return ArenaStats(self.nbytes - free, free, self.waiting)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._large.count + self._small.count + len(self._claims)

    def nbytes_of(self, user: str) -> int:
        """Bytes that the user has, was promised, or waits for."""
        has = self._lent.get(user, 0)
        for queue in (self._large, self._small):
            if queue.count:
                has += queue.nbytes_of(user)
        return has

    def refill_s(self, user: str, nbytes: int) -> float:
        """Time until the user has so many bytes fewer, if calls go on as of late."""
        has = self.nbytes_of(user)
        return min(self._mean_lent_s * nbytes / has, MAX_RETRY_AFTER_S) if has else 0.0

    def refuse_waiting(self, problem: Problem) -> None:
        """End every wait with `problem`."""
        waiting = [request.slot for request in (*self._large.clear(), *self._small.clear())]
        waiting += [future for _, future in self._claims]
        self._claims.clear()
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

    def _may_have(self, user: str, nbytes: int) -> bool:
        """Whether this is within the user's share."""
        lent = self._lent.get(user, 0)
        return not lent or lent + nbytes <= self._share(user) * self.nbytes

    def _main_is_open(self) -> bool:
        """Whether nobody waits for the main part."""
        return not self._claims and not self._large.count

    def _lend_small(self, user: str, nbytes: int, promise: int = 0) -> Slot | None:
        """From the main part if nobody waits for it, else from the reserve."""
        if self._main_is_open() and self._may_have(user, nbytes):
            slot = self._lend(self._main, user, nbytes)
            if slot is not None:
                return slot
        has = self._reserved.get(user, 0)
        if has + nbytes > self._reserve.free - nbytes:
            return None
        slot = self._lend(self._reserve, user, nbytes)
        if slot is not None:
            self._reserved[user] = has + nbytes
        return slot

    def _lend_large(self, user: str, nbytes: int, promise: int) -> Slot | None:
        """From the main part, if nobody has an older claim to it."""
        if self._claims or not self._may_have(user, nbytes + promise):
            return None
        return self._lend(self._main, user, nbytes, promise)

    def _lend(self, part: Extents, user: str, nbytes: int, promise: int = 0) -> Slot | None:
        alignment = mmap.PAGESIZE if promise or nbytes >= LARGE_BYTES else LINE_BYTES
        size = round_up(max(nbytes, 1), alignment)
        offset = part.find(size, alignment)
        if offset is None:
            return None
        if promise and not self._promises.allow(promise, offset, offset + size):
            return None
        part.take(offset, offset + size)
        view = self._memory[offset : offset + nbytes]
        slot = Slot(self, user, view, offset, offset + size)
        self._lent[user] = self._lent.get(user, 0) + nbytes + promise
        if promise:
            slot.promised = promise
            self._promises.add(slot)
        return slot

    def give_back(self, slot: Slot, lent_s: float) -> None:
        """All have let go of `slot`, which was lent for this time; only `Slot` calls it."""
        self._mean_lent_s += (lent_s - self._mean_lent_s) * 0.1
        _subtract(self._lent, slot.user, slot.nbytes + slot.promised)
        self._promises.discard(slot)
        if slot.offset < self.largest:
            self._main.give_back(slot.offset, slot.end)
        else:
            self._reserve.give_back(slot.offset, slot.end)
            _subtract(self._reserved, slot.user, slot.nbytes)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        if self._claims or self._large.count or self._small.count:
            self._serve_all()
        if not self._lent and not self.waiting:
            self._large.rest()
            self._small.rest()

    def _serve_all(self) -> None:
        self._serve_claims()
        while waiter := self._large.first(self._within_share):
            if not self._serve(self._large, waiter, self._lend_large):
                break
        passed: set[str] = set()
        while waiter := self._small.first(lambda small: small.user not in passed):
            if not self._serve(self._small, waiter, self._lend_small):
                if waiter.urgent:
                    break
                passed.add(waiter.user)

    def _serve_claims(self) -> None:
        while self._claims:
            source, future = self._claims[0]
            if not future.done():
                slot = self._keep_promise(source)
                if slot is None:
                    return
                future.set_result(slot)
            self._claims.popleft()

    def _keep_promise(self, source: Slot) -> Slot | None:
        slot = self._lend(self._main, source.user, source.promised)
        if slot is not None:
            _subtract(self._lent, source.user, source.promised)  # it was counted when promised
            source.promised = 0
            self._promises.discard(source)
        return slot

    def _serve(
        self,
        queue: FairQueue[_Request],
        waiter: _Waiter,
        lend: Callable[[str, int, int], Slot | None],
    ) -> bool:
        """Give `waiter` its slot, or take it out if it waits no more; False if there is no room."""
        request = waiter.item
        if request.slot.done():
            queue.withdraw(waiter)
            return True
        slot = lend(waiter.user, request.nbytes, request.promise)
        if slot is None:
            return False
        request.slot.set_result(slot)
        queue.serve(waiter)
        return True

    def _within_share(self, waiter: _Waiter) -> bool:
        return self._may_have(waiter.user, waiter.nbytes)

    def _forget(self, queue: FairQueue[_Request], waiter: _Waiter) -> None:
        """Take `waiter` out; whoever waited behind it may have room."""
        queue.withdraw(waiter)
        self._serve_waiting()

    def _forget_claim(self, claim: tuple[Slot, asyncio.Future[Slot]]) -> None:
        with contextlib.suppress(ValueError):  # it was refused with all others
            self._claims.remove(claim)
        self._serve_waiting()

    def _give_up(self, queue: FairQueue[_Request], waiter: _Waiter, timeout_s: float) -> None:
        if not waiter.item.slot.done():
            waiter.item.slot.set_exception(self._busy(waiter.nbytes, timeout_s))
            self._forget(queue, waiter)

    def _give_up_claim(self, claim: tuple[Slot, asyncio.Future[Slot]], timeout_s: float) -> None:
        slot, future = claim
        if not future.done():
            future.set_exception(self._busy(slot.promised, timeout_s))
            self._forget_claim(claim)

    def _busy(self, nbytes: int, timeout_s: float) -> Busy:
        """Memory did not come free; it will when those who wait now are served: so many fills of the
        arena, each lent as long as slots were of late."""
        asked = self._large.nbytes + self._small.nbytes
        wait_s = min(max(1.0, self._mean_lent_s * asked / self.nbytes), MAX_RETRY_AFTER_S)
        return Busy(
            f"no {nbytes} bytes of memory came free within {timeout_s:g} s", retry_after_s=wait_s
        )


async def _granted(future: asyncio.Future[Slot], forget: Callable[[], None]) -> Slot:
    """The slot that `future` will have; gives it back, or calls `forget`, if it is cancelled."""
    try:
        return await future
    except asyncio.CancelledError:
        if not future.done() or future.cancelled():
            forget()
        elif future.exception() is None:
            future.result().release()  # lent in the moment of the cancellation
        raise


def _paged(nbytes: int) -> int:
    """The bytes of the whole pages that a slot takes."""
    return round_up(nbytes, mmap.PAGESIZE)


def _subtract(counts: dict[str, int], user: str, nbytes: int) -> None:
    left = counts.get(user, 0) - nbytes
    if left:
        counts[user] = left
    else:
        counts.pop(user, None)
