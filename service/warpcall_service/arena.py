"""The memory that calls live in: one region shared with a lane, lent out in slots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes lent and free, and how many requests wait."""

    used: int
    free: int
    waiting: int


class Slot:
    """A piece of an arena, lent to one call.

    Attributes:
        view: its bytes, writable.
        offset: where it begins in the arena.
        nbytes: as many as were asked for.
    """

    view: memoryview
    offset: int
    nbytes: int

    def release(self) -> None:
        """Give it back; again is harmless. While a lane works on it, it stays lent."""


class Arena:
    """A shared region of `nbytes` bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    async def acquire(self, nbytes: int, timeout_s: float, *, urgent: bool = False) -> Slot:
        """A slot; strictly first come, first served, `urgent` ones before others.

        Raises:
            TooLarge: more than the arena has.
            Busy: none came free within `timeout_s`.
        """
        raise NotImplementedError

    def stats(self) -> ArenaStats:
        raise NotImplementedError
