"""One call on its way through a lane."""

from __future__ import annotations

import asyncio
import time

from warpcall.errors import Problem
from warpcall_service.lanes.fair_queue import Waiting
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import Timing


class Call:
    """One call on its way through a lane; it holds its slots until the lane is done with it."""

    __slots__ = (
        "began",
        "deadline",
        "done",
        "id",
        "nbytes",
        "plan",
        "source",
        "target",
        "timer",
        "waiting",
        "where",
    )

    def __init__(self, plan: Plan, source: Slot, target: Slot, where: int, deadline: float) -> None:
        self.id = 0
        self.plan = plan
        self.nbytes = plan.input_nbytes + plan.output_nbytes
        self.source = source
        self.target = target
        self.where = where  # byte of the arena where the outputs go
        self.deadline = deadline
        self.began = time.monotonic()
        self.done: asyncio.Future[Timing] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: Waiting[Call] | None = None  # its place in the queue
        source.hold()
        target.hold()

    def fail(self, problem: Problem) -> None:
        """Tell the caller, if he still waits."""
        if not self.done.done():
            self.done.set_exception(problem)

    def leave(self) -> None:
        """Let go of the slots and the clock; once, at the end."""
        if self.timer is not None:
            self.timer.cancel()
        self.source.drop()
        self.target.drop()
