"""Reads the state of each lane's device every few seconds, but never within a timed block.

A reading takes a thread some ms. A driver that hangs blocks only that thread: the device is then
not read until the driver has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpcall_service.lanes.device_lease import READING_S
from warpcall_service.lanes.device_reading import Reader, Reading, open_reader
from warpcall_service.lanes.lane import Lane

READ_EVERY_S = 5.0
GAP_S = 2.0  # how long a reading waits for the end of a timed block

log = logging.getLogger("warpcall.lane")


class DeviceWatch:
    """Reads the device of one lane, and adds the readings to the lane's activity.

    Args:
        open_reader: opens the reader of a device by its fingerprint; None if it cannot be read.
    """

    def __init__(self, lane: Lane, open_reader: Callable[..., Reader | None] = open_reader) -> None:
        self._lane = lane
        self._open_reader = open_reader
        self._reader: Reader | None = None
        self._opened: Mapping[str, Any] = {}  # fingerprint of the device that was opened

    async def run(self) -> None:
        """Read every READ_EVERY_S, until this task is cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.read()
            except Exception:
                log.exception("the state of %s cannot be read", self._lane.name)
            await asyncio.sleep(max(0.0, began + READ_EVERY_S - time.monotonic()))

    async def read(self) -> None:
        """Read the device once, unless it is not ready, or jobs have it for all of GAP_S."""
        lane = self._lane
        if lane.state != "ready":
            return
        facts, pid = lane.hello["fingerprint"], lane.status().pid
        async with lane.device_lease.between_blocks(GAP_S) as free:
            if not free:
                return
            reading = _in_thread(lambda: self._read(facts, pid))
            await asyncio.wait((reading,), timeout=READING_S)
        found = await reading
        if found is not None:
            lane.activity.add_reading(found)

    def _read(self, facts: Mapping[str, Any], worker_pid: int | None) -> Reading | None:
        if self._reader is None or facts != self._opened:
            self._reader, self._opened = self._open_reader(facts), facts
        return None if self._reader is None else self._reader.read(worker_pid)


async def watch_all(lanes: Sequence[Lane]) -> None:
    """Watch all devices until this task is cancelled."""
    await asyncio.gather(*(DeviceWatch(lane).run() for lane in lanes))


def _in_thread(function: Callable[[], Reading | None]) -> asyncio.Future[Reading | None]:
    """Run a function in a thread that the end of the server does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Reading | None] = loop.create_future()

    def finish(result: Reading | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, failed = None, None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # the waiting coroutine gets it
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, result, failed)

    threading.Thread(target=work, name="device", daemon=True).start()
    return done
