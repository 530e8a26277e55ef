"""The recorder of a run keeps and writes little, whatever the run reports."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from warpcall_service.jobs.queue import Claim
from warpcall_service.jobs.run_recorder import PROGRESS_BURST, RunRecorder
from warpcall_service.runs.events import Progress


def test_a_flood_of_progress_adds_few_rows_and_keeps_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def never(*rest: object) -> None:
        await asyncio.Event().wait()

    async def play() -> list[int]:
        nonlocal now
        database: Any = SimpleNamespace(write=never, notify=lambda number: None)
        recorder = RunRecorder(database, Claim(1, "me", 1), lambda: None)
        waiting = []
        for _ in range(3):
            for number in range(10_000):
                phase = ("warmup", "rounds")[number % 2]
                recorder.on_event(Progress({"position": 0, "phase": phase}))
            waiting.append(recorder._changes.qsize())
            now += 10.0
        await recorder.abandon()
        return waiting

    at_once, later, last = asyncio.run(play())

    assert at_once == PROGRESS_BURST
    assert later - at_once == last - later == 40
