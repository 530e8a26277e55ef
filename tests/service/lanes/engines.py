"""Engines with a CPU lane in the test's own process, and calls on them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil

from warpcall.wire import TensorInfo
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import LaneStatus
from warpcall_service.settings import Settings

PATIENCE_S = 60.0


async def until(condition: Callable[[], bool], every_s: float = 0.001) -> None:
    """Wait for it. With 0 in `every_s`, what holds in one turn of the loop only is seen, too."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(Settings.load(devices="cpu", arena_bytes=1 << 20, **settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def lane(engine: LocalEngine) -> LaneStatus:
    return engine.status()[0]


def process(engine: LocalEngine) -> psutil.Process:
    """The lane's process."""
    pid = lane(engine).pid
    assert pid is not None
    return psutil.Process(pid)


async def permute(engine: LocalEngine, nbytes: int) -> Plan:
    return await engine.plan_call("permute", [TensorInfo("x", "U8", (nbytes,))], {"dims": [0]})


async def call(engine: LocalEngine, plan: Plan, timeout_s: float) -> None:
    """Run `plan` on whatever lies in the memory that it is given."""
    deadline = time.monotonic() + timeout_s
    source = await engine.acquire(plan.input_nbytes, timeout_s, LOCAL.name)
    target = await engine.acquire(plan.output_nbytes, timeout_s, LOCAL.name)
    try:
        await engine.run_on_lane(plan, source, target, 0, deadline)
    finally:
        source.release()
        target.release()
