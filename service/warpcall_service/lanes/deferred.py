"""Memory that calls will get later, and why no two calls can wait for each other because of it.

A large call gets the memory of its outputs only once its inputs are here: otherwise a client that
sends slowly would occupy both. But calls that hold one piece of memory and wait for another can
wait for each other without end. So, as in the banker's algorithm, the slot of the inputs is
allocated only if the state afterwards is safe. A state is safe if this invariant holds:

    Between the slots with a deferred allocation there is a gap as long as the largest of these
    allocations.

All other slots in that gap are freed after some time: their calls do not wait for more memory, and
the time of their clients is limited. So the gap becomes free, and each deferred allocation fits
into it. Once one is made, its call no longer waits, and it frees all its memory in the end. The
invariant is about the slots that still have a deferred allocation, so it continues to hold. Nothing
else may be allocated in the gap meanwhile: while a deferred allocation waits, large calls get no
new slots.

A call that fits into the arena by itself is always safe once the others have ended, because its
slot then lies at the start.
"""

from __future__ import annotations

import mmap
from typing import Protocol

from warpcall_service.lanes.free_ranges import round_up


class DeferredSlot(Protocol):
    """A slot of whole pages, from `offset` to `end`, that will get `deferred_nbytes` more."""

    offset: int
    end: int
    deferred_nbytes: int


class DeferredAllocations:
    """The slots whose deferred allocation was not made yet.

    Args:
        limit: the end of the memory for deferred allocations, which begins at 0.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: set[DeferredSlot] = set()

    def is_safe(self, deferred_nbytes: int, offset: int, end: int) -> bool:
        """Whether the invariant holds with one more slot, from `offset` to `end`."""
        longest_gap = at = 0
        for slot_offset, slot_end in sorted(
            [(slot.offset, slot.end) for slot in self._slots] + [(offset, end)]
        ):
            longest_gap, at = max(longest_gap, slot_offset - at), slot_end
        longest_gap = max(longest_gap, self._limit - at)
        largest = max((slot.deferred_nbytes for slot in self._slots), default=0)
        return longest_gap >= round_up(max(largest, deferred_nbytes), mmap.PAGESIZE)

    def add(self, slot: DeferredSlot) -> None:
        """Count a slot that has a deferred allocation."""
        self._slots.add(slot)

    def discard(self, slot: DeferredSlot) -> None:
        """Its deferred allocation was made, or its call has ended. The operation is idempotent."""
        self._slots.discard(slot)
