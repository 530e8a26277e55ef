"""A call that is ready to be timed, and what its timed calls returned."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from warpcall_kernels.execution.inputs import PLACES

Inputs = Mapping[str, Tensor]
Call = Callable[[Inputs], Any]

PLACE_STEP = 4099  # between the places of two sets of inputs


@dataclass
class Timed:
    """A call that is ready to be timed.

    Args:
        call: function of a set of inputs.
        sets: sets of inputs with equal values at different addresses.
        method: description of how it is timed.
        rough_us: rough time of a call.
        host_us: time that the CPU needs to queue a call.
        repeats: calls in one sample.
        replay: runs the calls of a sample as one CUDA graph; if None, `call` runs `repeats` times.
        captured: what the calls of that graph return, by set of inputs.
        fill: writes the values of a place of the pool into a set of inputs, given the number of the
            set and the place; None if somebody else does it.
        place: of the values of the first set at the last replay.
        kept: what the last calls returned, each with the place of its values.
    """

    call: Call
    sets: Sequence[Inputs]
    method: str
    rough_us: float
    host_us: float
    repeats: int = 1
    replay: Callable[[], None] | None = None
    tags: tuple[str, ...] = ()
    captured: Sequence[Any] = ()
    fill: Callable[[int, int], None] | None = None
    place: int = 0
    kept: collections.deque[tuple[int, Any]] = field(
        default_factory=lambda: collections.deque(maxlen=1)
    )

    def results(self) -> list[tuple[int, Any]]:
        """What the last calls returned, each with the place of its values in the pool."""
        if self.replay is None:
            return [*self.kept]
        return [(place_of(self.place, number), out) for number, out in enumerate(self.captured)]

    def fill_sets(self, which: int, place: int) -> None:
        """Write values into the sets of inputs of one sample."""
        if self.fill is not None:
            for i in range(which, which + self.repeats):
                number = i % len(self.sets)
                self.fill(number, place_of(place, number))

    @property
    def nbytes(self) -> int:
        return max(1, sum(t.numel() * t.element_size() for t in self.sets[0].values()))


class HowTimed(Protocol):
    """How long a call takes, and how many are in one sample."""

    rough_us: float
    host_us: float
    repeats: int


@dataclass(frozen=True)
class Tight:
    """Calls that follow each other without pauses.

    Args:
        run: makes them and waits for their end.
        stays: whether each run writes its outputs to the same memory.
        results: what the calls return, each with the number of its set of inputs.
    """

    run: Callable[[], None]
    stays: bool
    results: Callable[[], Sequence[tuple[int, Any]]]


@dataclass(frozen=True)
class Row:
    """Consecutive calls: `run` makes them and returns the time of one in us."""

    run: Callable[[], float]
    calls: int

    def __call__(self) -> float:
        return self.run()


def place_of(place: int, number: int) -> int:
    """The place in the pool of the values of a set of inputs.

    Args:
        place: that of the sample.
        number: of the set.
    """
    return (place + PLACE_STEP * number) % PLACES


def run_calls(timed: Timed, which: int, place: int | None) -> None:
    """Make the calls of a sample, with sets of inputs from number `which` on."""
    for i in range(which, which + timed.repeats):
        number = i % len(timed.sets)
        result = timed.call(timed.sets[number])
        if place is not None:
            timed.kept.append((place_of(place, number), result))
