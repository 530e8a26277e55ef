"""Where the time of a benchmark goes: seconds by phase, as one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.kernels.references import COMPILED
from warpcall_kernels.execution.implementations import KERNELS

AHEAD = "compiling ahead"
OWN = "first calls of ours"
REFERENCES = "first calls of torch.compile"
CHECKING = "checking"
PREPARING = "inputs and graphs"
TIMING = "own timing"
PEERS = "do_bench"
WRITING = "writing"
FIRST_CALLS = {KERNELS: OWN, COMPILED: REFERENCES}  # they compile, or load what was compiled


class Phases:
    """Adds up the time of phases, of which one is current.

    Args:
        now: returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._current: str | None = None
        self.seconds: dict[str, float] = {}

    def begin(self, phase: str | None) -> None:
        """End the current phase and begin another; None means that no phase follows."""
        now = self._now()
        if self._current is not None:
            before = self.seconds.get(self._current, 0.0)
            self.seconds[self._current] = before + now - self._since
        self._since, self._current = now, phase

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the time of phases in another process."""
        for phase, more in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + more

    def summary(self) -> str:
        """The seconds of each phase, the longest first."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in ordered)


def of_event(event: Mapping[str, Any], called: set[str]) -> str:
    """The phase that an event of `measuring.measure` begins.

    Args:
        event: as `measure` reports it.
        called: implementations whose first call has begun; this function adds to them.
    """
    implementation = event.get("implementation")
    if event["phase"] == "correctness":
        if implementation in FIRST_CALLS and implementation not in called:
            called.add(implementation)
            return FIRST_CALLS[implementation]
        return CHECKING
    if event["phase"] == "preparing":
        return CHECKING if implementation is None else PREPARING
    return TIMING
