"""The engine over a real lane: what it promises while the lane's process is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from warpcall.errors import Busy
from warpcall_service.engine import LocalEngine
from warpcall_service.plan import InputTensor, Plan
from warpcall_service.settings import Settings

PATIENCE_S = 30.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_no_more_plans_than_allowed_wait_for_a_lane_that_is_replaced() -> None:
    async def play() -> tuple[Plan, Plan]:
        engine = LocalEngine(Settings.load(devices="cpu", arena_bytes=1 << 20, max_queue=1))

        def plan(nbytes: int) -> asyncio.Task[Plan]:
            x = InputTensor("x", "U8", (nbytes,))
            return asyncio.create_task(engine.plan("permute", [x], {"dims": [0]}))

        await engine.start()
        try:
            pid = engine.status()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            first = plan(1)
            await until(lambda: engine.status()[0].restarts == 1)
            with pytest.raises(Busy, match="1 calls wait to be checked"):
                await plan(2)
            return await first, await plan(2)
        finally:
            await engine.stop()

    plans = asyncio.run(play())

    assert [plan.outputs[0].shape for plan in plans] == [(1,), (2,)]
