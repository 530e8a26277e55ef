"""The state of a device is read between timed blocks, and a driver that hangs holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.forks import forked_workers
from warpcall_service.lanes import device_lease, device_watch
from warpcall_service.lanes.device_reading import Reading
from warpcall_service.lanes.device_watch import DeviceWatch
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.lane import Lane
from warpcall_service.settings import Settings

PATIENCE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _workers_are_forks() -> Iterator[None]:
    with forked_workers():
        yield


class HeldReader:
    """A driver whose answer comes when the test lets it.

    Attributes:
        asked: set when the device is read.
        answer: what it waits for.
    """

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.pids: list[int | None] = []

    def read(self, worker_pid: int | None) -> Reading:
        self.pids.append(worker_pid)
        self.asked.set()
        self.answer.wait(PATIENCE_S)
        return Reading(load=0.5)


@contextlib.asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Lane, DeviceWatch, Any]]:
    """A real lane that only the test reads."""

    async def nobody(lanes: object) -> None:
        pass

    monkeypatch.setattr("warpcall_service.lanes.engine.watch_all", nobody)
    engine = LocalEngine(Settings.load(devices="cpu", arena_bytes=1 << 20))
    await engine.start()
    reader = HeldReader()
    lane = engine.all_lanes[0]
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield lane, DeviceWatch(lane, lambda facts: reader), reader
    finally:
        reader.answer.set()
        await engine.stop()


def readings(lane: Lane) -> list[Reading]:
    return [step.reading for step in lane.activity.last_hour() if step.reading is not None]


async def until_asked(reader: HeldReader) -> None:
    assert await asyncio.to_thread(reader.asked.wait, PATIENCE_S)


def test_a_device_is_read_when_its_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(monkeypatch) as (lane, watch, reader):
            monkeypatch.setattr(device_watch, "GAP_S", PATIENCE_S)
            reader.answer.set()
            await lane.device_lease.acquire()
            reading = asyncio.create_task(watch.read())
            await asyncio.sleep(0.05)
            within = reader.asked.is_set()
            lane.device_lease.release()
            await reading

            assert not within
            assert readings(lane) == [Reading(load=0.5)]
            assert reader.pids == [lane.status().pid]

    asyncio.run(scenario())


def test_a_device_that_a_job_has_all_the_time_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(monkeypatch) as (lane, watch, reader):
            monkeypatch.setattr(device_watch, "GAP_S", 0.01)
            await lane.device_lease.acquire()
            await watch.read()
            lane.device_lease.release()

            assert not reader.asked.is_set()
            assert readings(lane) == []

    asyncio.run(scenario())


def test_a_block_begins_when_the_reading_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(monkeypatch) as (lane, watch, reader):
            monkeypatch.setattr(device_lease, "READING_S", PATIENCE_S)
            monkeypatch.setattr(device_watch, "READING_S", PATIENCE_S)
            reading = asyncio.create_task(watch.read())
            await until_asked(reader)
            block = asyncio.create_task(lane.device_lease.acquire())
            await asyncio.sleep(0.05)
            begun, held_back = block.done(), lane.device_lease.blocks_calls
            reader.answer.set()
            await block
            lane.device_lease.release()
            await reading

            assert (begun, held_back) == (False, False)  # calls do not wait either
            assert len(readings(lane)) == 1

    asyncio.run(scenario())


def test_a_driver_that_hangs_holds_up_neither_blocks_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with watched(monkeypatch) as (lane, watch, reader):
            monkeypatch.setattr(device_lease, "READING_S", 0.01)
            monkeypatch.setattr(device_watch, "READING_S", 0.01)
            reading = asyncio.create_task(watch.run())
            await until_asked(reader)
            for _ in range(2):
                await lane.device_lease.acquire()
                lane.device_lease.release()
            reading.cancel()
            await asyncio.wait((reading,))

            assert readings(lane) == []
            assert len(reader.pids) == 1  # no second thread waits for the driver

    asyncio.run(scenario())


def test_a_failure_to_read_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with watched(monkeypatch) as (lane, _, reader):
            reader.answer.set()
            monkeypatch.setattr(device_watch, "READ_EVERY_S", 0.0)
            failures = iter([OSError("no such file")])

            def open_reader(facts: object) -> HeldReader:
                for failure in failures:
                    raise failure
                found: HeldReader = reader
                return found

            running = asyncio.create_task(DeviceWatch(lane, open_reader).run())
            while not readings(lane):
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.wait((running,))

    asyncio.run(scenario())

    assert "the state of cpu cannot be read" in caplog.text
