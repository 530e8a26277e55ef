"""One call while a lane has it: queued, sent to the worker process, or running there."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from warpcall.errors import Problem
from warpcall_service.lanes.fair_queue import QueueEntry
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import Timing


class Outcome(Protocol):
    """Learns how a call ended. An asyncio.Future is one."""

    def done(self) -> bool:
        """Whether it knows already, or nobody waits for it any more."""

    def set_result(self, timing: Timing, /) -> None: ...
    def set_exception(self, problem: Problem, /) -> None: ...


@dataclass(eq=False, slots=True)
class Call:
    """One call while a lane has it. It keeps its slots allocated until `release`.

    Attributes:
        source: the slot with the inputs, at its start.
        target: the slot for the outputs.
        target_offset: the byte of the arena at which the outputs begin.
        deadline: by `time.monotonic()`.
        done: gets the call's timing, or the problem that ended it.
        id: set when the call is sent to the worker process.
        timer: of the deadline, and then of the grace time.
        entry: the call's place in the lane's queue while it waits there.
    """

    plan: Plan
    source: Slot
    target: Slot
    target_offset: int
    deadline: float
    done: Outcome
    id: int = 0
    began: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None
    entry: QueueEntry[Call] | None = None

    def __post_init__(self) -> None:
        self.source.retain()
        self.target.retain()

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs and outputs."""
        return self.plan.input_nbytes + self.plan.output_nbytes

    def fail(self, problem: Problem) -> None:
        """End the call with a problem, unless its caller has left."""
        if not self.done.done():
            self.done.set_exception(problem)

    def release(self) -> None:
        """Cancel the timer and let the slots go. Call this once, at the end."""
        if self.timer is not None:
            self.timer.cancel()
        self.source.release_retained()
        self.target.release_retained()
