"""Who has a device: its lane, call by call, or a job, for one timed block.

A block waits for the calls that are there when it is asked for, CALLS_WINDOW_S at most, and then for
the one that runs. While a job has the device, calls stay in the queue. Neither side can keep the
other off: calls wait for one block, and a block, under a flood of calls, for one turn of theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

CALLS_WINDOW_S = 0.25  # what a block takes, too
POLL_S = 0.005


class DeviceLease:
    """The hand-over between a lane and the job on its device.

    Args:
        is_busy: whether the lane's process has calls.
        has_waiting: whether calls wait for it.
        resume: lets the lane go on.
        calls_window_s: the most that a block waits for calls to be served.

    Attributes:
        blocks_calls: calls are not handed to the lane's process: a job has the device, or is about to.
        since: when it was handed over, by time.monotonic(); None while the lane has it.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        has_waiting: Callable[[], bool],
        resume: Callable[[], None],
        calls_window_s: float = CALLS_WINDOW_S,
    ) -> None:
        self.blocks_calls = False
        self.since: float | None = None
        self._is_busy = is_busy
        self._has_waiting = has_waiting
        self._resume = resume
        self._calls_window_s = calls_window_s
        self._changed: asyncio.Future[None] | None = None  # there while a job waits

    async def acquire(self) -> None:
        """Wait until nothing runs on the device, and keep it so until `release`; one job at a time."""
        assert self.since is None
        window_ends = time.monotonic() + self._calls_window_s
        try:
            while self._has_waiting() and (left_s := window_ends - time.monotonic()) > 0:
                await self._wait_for_change(left_s)
            self.blocks_calls = True
            while self._is_busy():
                await self._wait_for_change(None)
        except BaseException:
            self.release()
            raise
        self.since = time.monotonic()

    def release(self) -> None:
        """Give the device back; again is harmless."""
        self.since = None
        if self.blocks_calls:
            self.blocks_calls = False
            self._resume()

    async def wait_released(self) -> None:
        """Wait until no job has the device."""
        while self.since is not None:
            await asyncio.sleep(POLL_S)

    def notify(self) -> None:
        """The lane has come to the end of a call, or to a new state."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._changed,), timeout=timeout_s)
        finally:
            self._changed = None
