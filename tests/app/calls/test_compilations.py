"""Calls that compile kernels let the calls of other users pass."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.app.harness import ThreadProcess
from warpcall.wire import TensorInfo
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.settings import Settings
from warpcall_service.worker.call_loop import CallLoop

COMPILE_S = 0.1
COMPILED, QUICK = 12, 8  # calls that compile, and others
PATIENCE_S = 60.0


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of an odd size takes as long as a compilation, and says so."""
    begin = CallLoop._begin

    def slow(self: CallLoop, message: bytes, *rest: Any) -> Any:
        pending, compile_ms = begin(self, message, *rest)
        if b"1001" not in message:
            return pending, compile_ms
        time.sleep(COMPILE_S)
        return pending, COMPILE_S * 1e3

    monkeypatch.setattr(CallLoop, "_begin", slow)


async def run(engine: LocalEngine, plan: Plan, user: str) -> float:
    """When a call of a user had ended."""
    source = await engine.acquire(plan.input_nbytes, PATIENCE_S, user)
    target = await engine.acquire(plan.output_nbytes, PATIENCE_S, user)
    try:
        await engine.run_on_lane(plan, source, target, 0, time.monotonic() + PATIENCE_S)
    finally:
        source.release()
        target.release()
    return time.monotonic()


@pytest.mark.usefixtures("compiling")
def test_calls_of_others_wait_for_few_compilations() -> None:
    async def play() -> tuple[list[float], list[float]]:
        settings = Settings.load(devices="cpu", arena_bytes=1 << 20)
        engine = LocalEngine(settings, ThreadProcess)
        await engine.start()
        try:
            slow, quick = [
                await engine.plan_call("permute", [TensorInfo("x", "U8", (size,))], {"dims": [0]})
                for size in (1001, 64)
            ]
            await run(engine, slow, "a")  # until then nobody knows that these calls compile
            many = [asyncio.create_task(run(engine, slow, "a")) for _ in range(COMPILED)]
            await asyncio.sleep(COMPILE_S / 2)
            few = await asyncio.gather(*(run(engine, quick, "b") for _ in range(QUICK)))
            return await asyncio.gather(*many), few
        finally:
            await engine.stop()

    compiled, quick = asyncio.run(play())

    before = sum(ended < max(quick) for ended in compiled)
    assert before <= 3, f"{QUICK} calls of another user waited for {before} compilations"
