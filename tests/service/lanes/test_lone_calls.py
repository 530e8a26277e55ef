"""While calls come one at a time, the event loop does not sleep until the lane answers."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.lanes.engines import PATIENCE_S, call, lane, permute, process, started, until
from tests.suspended import suspended
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.lane import Lane
from warpcall_service.lanes.messages import Done
from warpcall_service.processes import lone_calls
from warpcall_service.processes.lone_calls import CPUS, LoneCalls

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

IN_ROW = 3
SHORT_S = 1e-3  # for which the event loop stays awake in the test of a short time
OVER_S = 0.05  # so much later SHORT_S is over


class Counted:
    """Counts how often the event loop was kept awake.

    Attributes:
        times: so often.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        stay_awake = LoneCalls._stay_awake

        def counted(calls: LoneCalls) -> None:
            self.times += 1
            stay_awake(calls)

        monkeypatch.setattr(LoneCalls, "_stay_awake", counted)

    async def rise(self) -> bool:
        """Whether it still rises after OVER_S."""
        await asyncio.sleep(OVER_S)
        before = self.times
        await asyncio.sleep(0.1)
        return self.times > before


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(lone_calls, "LONE_CALLS", IN_ROW)
    set_short(monkeypatch, is_short=True)
    set_cpus(monkeypatch, CPUS - 1)
    set_awake_s(monkeypatch, PATIENCE_S)
    return Counted(monkeypatch)


def set_short(monkeypatch: pytest.MonkeyPatch, *, is_short: bool) -> None:
    monkeypatch.setattr("warpcall_service.lanes.lane.SHORT_CALL_S", PATIENCE_S if is_short else 0.0)


def set_cpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)))


def set_awake_s(monkeypatch: pytest.MonkeyPatch, awake_s: float) -> None:
    monkeypatch.setattr(lone_calls, "AWAKE_S", awake_s)
    monkeypatch.setattr(lone_calls, "FEW_CPUS_AWAKE_S", awake_s)


def say_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane's process says that it copied each call's inputs."""
    on_done = Lane._on_done

    def copied(of: Lane, done: Done, problem: bytes) -> None:
        on_done(of, (*done[:2], 0.1, *done[3:]), problem)

    monkeypatch.setattr(Lane, "_on_done", copied)


async def rises(counted: Counted, before: int, together: int = 1) -> tuple[bool, bool]:
    """Make calls, and then some that the lane's process does not answer for a while.

    Args:
        before: calls that come one at a time.
        together: calls while the process is stopped.

    Returns:
        Whether the event loop is kept awake while they are on the lane, and whether afterwards.
    """
    async with started() as engine:
        plan = await permute(engine, 5)
        for _ in range(before):
            await call(engine, plan, PATIENCE_S)
        found = await rises_while_stopped(engine, counted, together)
        return found, await counted.rise()


async def rises_while_stopped(engine: LocalEngine, counted: Counted, together: int) -> bool:
    plan = await permute(engine, 5)
    with suspended(process(engine)):
        calls = [asyncio.create_task(call(engine, plan, PATIENCE_S)) for _ in range(together)]
        await until(lambda: lane(engine).in_flight == together)
        found = await counted.rise()
    await asyncio.gather(*calls)
    return found


def test_a_call_keeps_the_event_loop_awake_once_enough_came_one_at_a_time(
    counted: Counted,
) -> None:
    assert asyncio.run(rises(counted, IN_ROW - 2)) == (False, False)
    assert asyncio.run(rises(counted, IN_ROW - 1)) == (True, False)


def test_beside_others_no_call_keeps_the_event_loop_awake(counted: Counted) -> None:
    assert asyncio.run(rises(counted, 2 * IN_ROW, together=2)) == (False, False)


def test_after_calls_beside_others_as_many_must_come_one_at_a_time(counted: Counted) -> None:
    async def play() -> tuple[bool, bool]:
        async with started() as engine:
            plan = await permute(engine, 5)
            await call(engine, plan, PATIENCE_S)  # none is sent ahead before one was answered
            await rises_while_stopped(engine, counted, 2)
            for _ in range(IN_ROW - 2):
                await call(engine, plan, PATIENCE_S)
            return (
                await rises_while_stopped(engine, counted, 1),
                await rises_while_stopped(engine, counted, 1),
            )

    assert asyncio.run(play()) == (False, True)


def test_the_event_loop_stays_awake_for_a_short_time(
    monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    set_awake_s(monkeypatch, SHORT_S)

    found = asyncio.run(rises(counted, 2 * IN_ROW))

    assert counted.times > 0
    assert found == (False, False)


@pytest.mark.parametrize(
    ("cpus", "is_short", "has_copied", "expected"),
    [
        (CPUS - 1, True, False, True),
        (CPUS - 1, False, True, False),
        (CPUS, True, False, False),
        (CPUS, False, True, True),
    ],
)
def test_with_few_cpus_short_calls_are_waited_for_and_else_those_with_copies(
    monkeypatch: pytest.MonkeyPatch,
    counted: Counted,
    cpus: int,
    is_short: bool,
    has_copied: bool,
    expected: bool,
) -> None:
    set_cpus(monkeypatch, cpus)
    set_short(monkeypatch, is_short=is_short)
    if has_copied:
        say_copied(monkeypatch)

    assert asyncio.run(rises(counted, IN_ROW)) == (expected, False)
