"""Shares a device between its lane, which runs calls, and a job, which runs timed blocks.

A block first waits for the calls in the queue, about as long as the block before it took, and then
for the calls that the worker process has. Blocks are short while calls arrive. While the job has the device, calls stay in the queue. Neither side can
starve the other: calls wait for at most one block, and a block for at most one such window.

The state of the device is read between blocks. A block waits until a reading ends, READING_S at
most.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable

WINDOW_FACTOR = 1.25  # of the last block's time, in which calls in the queue come first
MIN_WINDOW_S, MAX_WINDOW_S = 0.005, 0.25
SHORT_BLOCK_S = 0.005  # of timed work in a block while calls arrive; they wait for one block
LONG_BLOCK_S = 0.04  # otherwise: the first call that arrives may wait for such a block
CALLS_S = 1.0  # after its last call a lane is expected to get more
POLL_S = 0.005
READING_S = 0.25  # a reading takes some ms, unless the driver hangs


class DeviceLease:
    """The hand-over between a lane and the job on its device.

    Args:
        is_busy: tells whether the worker process has calls.
        has_waiting: tells whether calls wait in the lane's queue.
        resume: sends waiting calls to the worker process.
        on_block: called with the seconds for which a job had the device.
        calls_window_s: the longest time that a block waits for calls in the queue; None means
            WINDOW_FACTOR times the block before.
        called_at: tells when the lane's last call ended, by time.monotonic().
        is_starting: tells whether the worker process is being started, or compiles or loads kernels
            beside calls. No job gets the device meanwhile: that would disturb what it times.

    Attributes:
        blocks_calls: the lane sends no calls: a job has the device, or waits for it.
        since: when the job got the device, by time.monotonic(); None while the lane has it.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        has_waiting: Callable[[], bool],
        resume: Callable[[], None],
        on_block: Callable[[float], None] = lambda seconds: None,
        calls_window_s: float | None = None,
        called_at: Callable[[], float] = lambda: -math.inf,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.blocks_calls = False
        self.since: float | None = None
        self._is_busy = is_busy
        self._has_waiting = has_waiting
        self._resume = resume
        self._on_block = on_block
        self._calls_window_s = calls_window_s
        self._called_at = called_at
        self._is_starting = is_starting
        self._held_s = 0.0  # by the last block
        self._changed: asyncio.Future[None] | None = None  # set while a job waits
        self._released: asyncio.Future[None] | None = None  # set while a reading waits
        self._is_read = False

    @property
    def block_s(self) -> float:
        """Seconds of timed work that the next block may have."""
        calls = self._has_waiting() or time.monotonic() - self._called_at() < CALLS_S
        return SHORT_BLOCK_S if calls else LONG_BLOCK_S

    async def acquire(self) -> None:
        """Get the device for one job, until `release`: wait until nothing runs there."""
        assert self.since is None
        while self._is_starting():
            await self._wait_for_change(None)
        window_s = self._calls_window_s
        if window_s is None:
            window_s = min(max(WINDOW_FACTOR * self._held_s, MIN_WINDOW_S), MAX_WINDOW_S)
        window_ends = time.monotonic() + window_s
        try:
            while self._has_waiting() and (left_s := window_ends - time.monotonic()) > 0:
                await self._wait_for_change(left_s)
            reading_ends = time.monotonic() + READING_S
            while self._is_read and (left_s := reading_ends - time.monotonic()) > 0:
                await self._wait_for_change(left_s)
            self.blocks_calls = True
            while self._is_busy():
                await self._wait_for_change(None)
        except BaseException:
            self.release()
            raise
        self.since = time.monotonic()

    def release(self) -> None:
        """Return the device to the lane. The operation is idempotent."""
        if self.since is not None:
            self._held_s = time.monotonic() - self.since
            self._on_block(self._held_s)
        self.since = None
        if self.blocks_calls:
            self.blocks_calls = False
            self._resume()
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def wait_released(self) -> None:
        """Wait until no job has the device."""
        while self.since is not None:
            await asyncio.sleep(POLL_S)

    @contextlib.asynccontextmanager
    async def between_blocks(self, wait_s: float) -> AsyncIterator[bool]:
        """Let no job get the device while its state is read, for READING_S at most.

        Yields:
            Whether no job has the device or waits for it; False if one had it for all of `wait_s`.
        """
        ends = time.monotonic() + wait_s
        while self.blocks_calls and (left_s := ends - time.monotonic()) > 0:
            self._released = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._released,), timeout=left_s)
        self._released = None
        self._is_read = free = not self.blocks_calls
        try:
            yield free
        finally:
            self._is_read = False
            if free:
                self.notify()

    def notify(self) -> None:
        """Check again whether the device is free: a call has ended, or the lane's state changed."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._changed,), timeout=timeout_s)
        finally:
            self._changed = None
