"""A piece of an arena that is allocated to one call."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpcall_service.lanes.arena import Arena


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
