"""How many calls a lane sends to its process before it has answered the first."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.lanes.engines import PATIENCE_S, call, lane, permute, process, started, until
from tests.suspended import suspended
from warpcall_service.lanes.lane_call import MAX_AHEAD, MAX_SHORT_AHEAD
from warpcall_service.lanes.status import LaneStatus


@pytest.mark.parametrize(
    ("short_s", "expected"),
    [(PATIENCE_S, MAX_SHORT_AHEAD), (0.0, MAX_AHEAD)],
    ids=["short", "long"],
)
def test_more_calls_are_sent_ahead_if_they_are_short_and_alike(
    monkeypatch: pytest.MonkeyPatch, short_s: float, expected: int
) -> None:
    """A call of another kind waits for few of them, in the queue, and none of them passes it."""
    monkeypatch.setattr("warpcall_service.lanes.lane_call.SHORT_CALL_S", short_s)

    async def play() -> tuple[LaneStatus, LaneStatus]:
        async with started() as engine:
            plan, other = await permute(engine, 5), await permute(engine, 7)
            await call(engine, plan, PATIENCE_S)  # until then nobody knows how long one takes
            with suspended(process(engine)):
                calls = [
                    asyncio.create_task(call(engine, plan, PATIENCE_S)) for _ in range(expected + 3)
                ]
                await until(lambda: lane(engine).queued == 3)
                alike = lane(engine)
                calls += [
                    asyncio.create_task(call(engine, one, PATIENCE_S)) for one in (other, plan)
                ]
                await until(lambda: lane(engine).queued == 5)
                mixed = lane(engine)
            await asyncio.gather(*calls)
            return alike, mixed

    alike, mixed = asyncio.run(play())

    assert (alike.in_flight, mixed.in_flight) == (expected, expected)


def test_a_call_of_another_kind_does_not_follow_many_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warpcall_service.lanes.lane_call.SHORT_CALL_S", PATIENCE_S)

    async def play() -> LaneStatus:
        async with started() as engine:
            plan, other = await permute(engine, 5), await permute(engine, 7)
            await call(engine, plan, PATIENCE_S)
            with suspended(process(engine)):
                calls = [
                    asyncio.create_task(call(engine, plan, PATIENCE_S)) for _ in range(MAX_AHEAD)
                ]
                await until(lambda: lane(engine).in_flight == MAX_AHEAD)
                calls.append(asyncio.create_task(call(engine, other, PATIENCE_S)))
                await until(lambda: lane(engine).queued == 1)
                calls.append(asyncio.create_task(call(engine, plan, PATIENCE_S)))
                await until(lambda: lane(engine).queued == 2)
                found = lane(engine)
            await asyncio.gather(*calls)
            return found

    found = asyncio.run(play())

    assert found.in_flight == MAX_AHEAD, "none passes the call of another kind"
