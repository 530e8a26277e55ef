"""One call on its way through a lane."""

from __future__ import annotations

import asyncio
import time

from warpcall.errors import Problem
from warpcall_service.lanes.fair_queue import QueueEntry
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import Timing


class Call:
    """One call on its way through a lane; it holds its slots until the lane is done with it."""

    __slots__ = (
        "began",
        "deadline",
        "done",
        "entry",
        "id",
        "nbytes",
        "plan",
        "source",
        "target",
        "target_offset",
        "timer",
    )

    def __init__(
        self, plan: Plan, source: Slot, target: Slot, target_offset: int, deadline: float
    ) -> None:
        self.id = 0
        self.plan = plan
        self.nbytes = plan.input_nbytes + plan.output_nbytes
        self.source = source
        self.target = target
        self.target_offset = target_offset  # byte of the arena where the outputs go
        self.deadline = deadline
        self.began = time.monotonic()
        self.done: asyncio.Future[Timing] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.entry: QueueEntry[Call] | None = None  # its place in the queue
        source.retain()
        target.retain()

    def fail(self, problem: Problem) -> None:
        """Tell the caller, if he still waits."""
        if not self.done.done():
            self.done.set_exception(problem)

    def release(self) -> None:
        """Let go of the slots and the clock; once, at the end."""
        if self.timer is not None:
            self.timer.cancel()
        self.source.release_retained()
        self.target.release_retained()
