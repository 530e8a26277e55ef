"""Memory that was promised to calls, and how it is known that every promise can be kept.

A large call takes the memory of its outputs only when its inputs are here: otherwise a client that
sends slowly would hold both. But calls that hold one piece of memory and wait for another can wait
for each other without end. Therefore the slot of the inputs is lent together with a promise of the
outputs' bytes, and a promise is made only if this invariant still holds:

    Between the slots that have a promise there is a gap at least as long as the largest promise.

All other slots in that gap come back by themselves: their holders do not wait for more memory, and
the time of their clients is limited. So the gap becomes free, and each promise fits into it. Keeping a
promise ends the wait of one call, which then gives back all that it holds; the invariant is about
the slots that still have a promise, so it holds on. It remains to let nobody take from the gap in
between: while a promise is claimed, large calls get nothing new.

A single call that fits by itself can always be promised its outputs when the others have ended, since
its slot then lies at the start.
"""

from __future__ import annotations

import mmap
from typing import Protocol

from warpcall_service.lanes.free_ranges import round_up


class DeferredSlot(Protocol):
    """A slot of an arena, of whole pages from `offset` to `end`, with `deferred_nbytes` bytes to come."""

    offset: int
    end: int
    deferred_nbytes: int


class DeferredAllocations:
    """The slots whose promise was not kept yet.

    Args:
        limit: where the memory for promises ends; it begins at 0.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: set[DeferredSlot] = set()

    def is_safe(self, deferred_nbytes: int, offset: int, end: int) -> bool:
        """Whether the invariant holds with one more slot."""
        longest = at = 0
        for begin, end_before in sorted([(s.offset, s.end) for s in self._slots] + [(offset, end)]):
            longest, at = max(longest, begin - at), end_before
        largest = max((slot.deferred_nbytes for slot in self._slots), default=0)
        return max(longest, self._limit - at) >= round_up(
            max(largest, deferred_nbytes), mmap.PAGESIZE
        )

    def add(self, slot: DeferredSlot) -> None:
        """A promise was made with `slot`."""
        self._slots.add(slot)

    def discard(self, slot: DeferredSlot) -> None:
        """The promise was kept, or its call has ended; this is idempotent."""
        self._slots.discard(slot)
