"""What a lane did during the last hour, in steps of ten seconds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

STEP_S = 10
STEPS = 360  # one hour


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        number: time.monotonic() at the begin of the step, divided by STEP_S.
        calls: number of calls that ended in it.
        calls_s: seconds that the device worked on these calls.
        blocks_s: seconds for which a job had the device, by the blocks that ended in it.
    """

    number: int
    calls: int = 0
    calls_s: float = 0.0
    blocks_s: float = 0.0


class Activity:
    """Counts the calls of a lane and the timed blocks of its jobs. Only steps with any are kept."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=STEPS)

    def add_call(self, seconds: float) -> None:
        """Count a call on which the device worked for so long."""
        step = self._now()
        step.calls += 1
        step.calls_s += seconds

    def add_block(self, seconds: float) -> None:
        """Count a timed block of a job, which had the device for so long."""
        self._now().blocks_s += seconds

    def last_hour(self) -> list[Step]:
        """The steps of the last hour with any activity, the earliest first, numbered from now: the
        step that has not ended has the number 0, the one before it -1."""
        current = self._number()
        return [
            Step(step.number - current, step.calls, step.calls_s, step.blocks_s)
            for step in self._steps
            if step.number > current - STEPS
        ]

    def _number(self) -> int:
        return int(time.monotonic() / STEP_S)

    def _now(self) -> Step:
        number = self._number()
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(Step(number))
        return self._steps[-1]
