"""What a worker knows of its device, whatever kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from warpcall_service.devices.tensors import Runnable

Times = tuple[float, float, float]  # ms of h2d, kernel and d2h


class Pending(Protocol):
    """A call that a device has begun."""

    def ready(self) -> bool:
        """Whether the device has finished it."""
        ...

    def times(self) -> Times:
        """Wait until the device has finished it, and return the times of its stages.

        Raises whatever went wrong.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A call that ended while it was begun."""

    took: Times

    def ready(self) -> bool:
        return True

    def times(self) -> Times:
        return self.took


class Device(Protocol):
    """A device that runs calls, one after the other.

    Attributes:
        name: such as "cuda:0".
        label: a name for people, in responses and logs.
        all: names of all devices of this kind.
        memory_nbytes: the most bytes that tensors may use on it.
    """

    name: str
    label: str
    all: list[str]
    memory_nbytes: int

    def begin(self, work: Runnable, source: int, target: int) -> Pending:
        """Begin `work`, whose input and output regions begin at these bytes of the arena.

        Calls that were begun before may still run. This one runs after them.
        """
        ...

    def is_broken(self) -> bool:
        """Whether the device cannot run any more calls, after one that raised an exception."""
        ...
