"""A piece of an arena, lent to one call."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpcall_service.lanes.arena import Arena


class Slot:
    """A piece of an arena, lent to one call.

    The one who acquired it releases it. Whoever else works on it meanwhile (a lane) holds it, and
    it returns to the arena only when all have let go.

    Attributes:
        arena: where it is from.
        view: its bytes, writable; unusable after `release`.
        offset: where it begins in the arena.
        end: where it ends there, its padding included.
        nbytes: as many as were asked for.
        deferred_nbytes: bytes that `Arena.acquire_deferred` will give beside it.
        user: on whose behalf.
    """

    __slots__ = (
        "_allocated_at",
        "_references",
        "_released",
        "arena",
        "deferred_nbytes",
        "end",
        "nbytes",
        "offset",
        "user",
        "view",
    )

    def __init__(self, arena: Arena, user: str, view: memoryview, offset: int, end: int) -> None:
        self.arena = arena
        self.end = end
        self.deferred_nbytes = 0
        self.user = user
        self.view = view
        self.offset = offset
        self.nbytes = len(view)
        self._allocated_at = time.monotonic()
        self._references = 1
        self._released = False

    def release(self) -> None:
        """Give it back; again is harmless. While a lane works on it, it stays lent."""
        if not self._released:
            self._released = True
            with contextlib.suppress(BufferError):  # an array made of it is still alive somewhere
                self.view.release()
            self.release_retained()

    def retain(self) -> None:
        """Keep it from returning to the arena until `release_retained`."""
        self._references += 1

    def release_retained(self) -> None:
        """Let go of what `retain` kept."""
        self._references -= 1
        if not self._references:
            self.arena.free(self, time.monotonic() - self._allocated_at)
