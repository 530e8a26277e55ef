"""Who has a device: its lane, call by call, or a job, for one timed block.

A block waits for the calls that are there when it is asked for, CALLS_TURN_S at most, and then for
the one that runs. While a job has the device, calls stay in the queue. Neither side can keep the
other off: calls wait for one block, and a block, under a flood of calls, for one turn of theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

CALLS_TURN_S = 0.25  # what a block takes, too
POLL_S = 0.005


class Lease:
    """The hand-over between a lane and the job on its device.

    Args:
        busy: whether the lane's process has calls.
        waiting: whether calls wait for it.
        pump: lets the lane go on.
        turn_s: the most that a block waits for calls to be served.

    Attributes:
        closed: calls are not handed to the lane's process: a job has the device, or is about to.
        since: when it was handed over, by time.monotonic(); None while the lane has it.
    """

    def __init__(
        self,
        busy: Callable[[], bool],
        waiting: Callable[[], bool],
        pump: Callable[[], None],
        turn_s: float = CALLS_TURN_S,
    ) -> None:
        self.closed = False
        self.since: float | None = None
        self._busy = busy
        self._waiting = waiting
        self._pump = pump
        self._turn_s = turn_s
        self._changed: asyncio.Future[None] | None = None  # there while a job waits

    async def acquire(self) -> None:
        """Wait until nothing runs on the device, and keep it so until `release`; one job at a time."""
        assert self.since is None
        turn_ends = time.monotonic() + self._turn_s
        try:
            while self._waiting() and (left_s := turn_ends - time.monotonic()) > 0:
                await self._change(left_s)
            self.closed = True
            while self._busy():
                await self._change(None)
        except BaseException:
            self.release()
            raise
        self.since = time.monotonic()

    def release(self) -> None:
        """Give the device back; again is harmless."""
        self.since = None
        if self.closed:
            self.closed = False
            self._pump()

    async def ended(self) -> None:
        """Wait until no job has the device."""
        while self.since is not None:
            await asyncio.sleep(POLL_S)

    def step(self) -> None:
        """The lane has come to the end of a call, or to a new state."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self, timeout_s: float | None) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._changed,), timeout=timeout_s)
        finally:
            self._changed = None
