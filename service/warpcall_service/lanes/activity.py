"""What a lane did during the last hour, in steps of ten seconds."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, replace

from warpcall_service.lanes.device_reading import Reading

STEP_S = 10
STEPS = 360  # one hour
MINUTE = 6  # steps


@dataclass(slots=True)
class ActivityStep:
    """One step.

    Attributes:
        number: time.monotonic() at the begin of the step, divided by STEP_S.
        calls: number of calls that ended in it.
        calls_s: seconds that the device worked on these calls.
        blocks_s: seconds for which a job had the device, by the blocks that ended in it.
        reading: the last state of the device that was read in it, with what any reading in it saw of
            throttling, the power limit and other processes.
    """

    number: int
    calls: int = 0
    calls_s: float = 0.0
    blocks_s: float = 0.0
    reading: Reading | None = None


class Activity:
    """Counts the calls of a lane and the timed blocks of its jobs, and keeps readings of its device.

    Only steps with any of these are kept.

    Attributes:
        called_at: when the last call ended, by time.monotonic().
    """

    def __init__(self) -> None:
        self.called_at = -math.inf
        self._steps: deque[ActivityStep] = deque(maxlen=STEPS)

    def add_call(self, seconds: float) -> None:
        """Count a call on which the device worked for so long."""
        self.called_at = time.monotonic()
        step = self._now()
        step.calls += 1
        step.calls_s += seconds

    def add_block(self, seconds: float) -> None:
        """Count a timed block of a job, which had the device for so long."""
        self._now().blocks_s += seconds

    def add_reading(self, reading: Reading) -> None:
        """Keep a reading of the device."""
        step = self._now()
        before = step.reading
        if before is not None:
            reading = replace(
                reading,
                throttled=reading.throttled or before.throttled,
                power_capped=reading.power_capped or before.power_capped,
                other_processes=max(
                    (n for n in (before.other_processes, reading.other_processes) if n is not None),
                    default=None,
                ),
            )
        step.reading = reading

    def last_hour(self) -> list[ActivityStep]:
        """The steps of the last hour with any activity, the earliest first, numbered from now: the
        step that has not ended has the number 0, the one before it -1."""
        current = self._number()
        return [
            replace(step, number=step.number - current)
            for step in self._steps
            if step.number > current - STEPS
        ]

    def numbers(self) -> list[int]:
        """The numbers of the steps of `last_hour`, as `ActivityStep` has them."""
        current = self._number()
        return [step.number for step in self._steps if step.number > current - STEPS]

    def last_reading(self) -> Reading | None:
        """The last reading of the device, with what any of the last minute saw of throttling and the
        power limit; None if there was none in the last minute."""
        current = self._number()
        found = [
            step.reading
            for step in self._steps
            if step.reading is not None and step.number > current - MINUTE
        ]
        if not found:
            return None
        return replace(
            found[-1],
            throttled=next((one.throttled for one in reversed(found) if one.throttled), ""),
            power_capped=any(one.power_capped for one in found),
        )

    def _number(self) -> int:
        return int(time.monotonic() / STEP_S)

    def _now(self) -> ActivityStep:
        number = self._number()
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(ActivityStep(number))
        return self._steps[-1]
