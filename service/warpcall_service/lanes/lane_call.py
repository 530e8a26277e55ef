"""One call while a lane has it: queued, sent to the worker process, or running there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from warpcall.errors import Problem
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.fair_queue import QueueEntry
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import Timing

# Calls that are sent to the worker process before it has answered the first, so that it wakes up
# once for several. They must be small: large ones take longer, and an unsent one can be dropped.
MAX_AHEAD = 8
MAX_AHEAD_BYTES = 4 << 20
# As many if the call is like the one before it, and calls take no longer than this on the device. So a
# call of another user waits for some 2 ms of them. 32 clients' calls of 4 KB: 59 us of CPU a call in the
# server's process, 63 if each waits in the queue first.
MAX_SHORT_AHEAD = 32
SHORT_CALL_S = 60e-6
# While calls compile kernels, which takes 0.15 to 0.9 s each on an H200, none is sent ahead if those that were sent may
# compile for so long: a call of another user would wait for all of them.
MAX_COMPILED_AHEAD_S = 10e-3


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
        nbytes: bytes of the inputs and outputs.
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
    nbytes: int = field(init=False)
    id: int = 0
    began: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None
    entry: QueueEntry[Call] | None = None

    def __post_init__(self) -> None:
        self.nbytes = self.plan.input_nbytes + self.plan.output_nbytes
        self.source.retain()
        self.target.retain()

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


def may_follow(
    call: Call, sent: Sequence[Call], sent_nbytes: int, mean_s: float, mean_compile_s: float
) -> bool:
    """Whether a call may be sent to the worker process, which has not answered others yet.

    Args:
        sent: these, the oldest first.
        sent_nbytes: their bytes.
        mean_s: what a call took on the device lately; 0 if nothing is known.
        mean_compile_s: how long a call compiled lately.
    """
    if not mean_s or len(sent) * mean_compile_s > MAX_COMPILED_AHEAD_S:
        return False
    is_short = call.plan is sent[-1].plan and mean_s <= SHORT_CALL_S
    ahead = sent_nbytes - sent[0].nbytes + call.nbytes
    return len(sent) < (MAX_SHORT_AHEAD if is_short else MAX_AHEAD) and ahead <= MAX_AHEAD_BYTES
