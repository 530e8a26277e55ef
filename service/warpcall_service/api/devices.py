"""The route about devices: their state, and what they did in the last hour."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from fastapi import Response

from warpcall.devices import Device, DeviceList, DeviceReading, DeviceStep
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.router import Router
from warpcall_service.lanes.activity import STEP_S, ActivityStep
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.lane import Lane
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.remote_devices import written
from warpcall_service.store.times import moment, now_ms


def devices(engine: LocalEngine, membership: Membership) -> Router:
    """The route that lists devices."""
    router = Router(prefix="/v1/devices", tags=["devices"])

    @router.get("", response_model=DeviceList)
    async def list_devices(caller: CurrentCaller) -> Response:
        """The devices of all servers that share a database, with their last hour.

        They are the same for all users. Those of the server that answers come first.
        """
        own = [
            replace(_device(lane), node=membership.id, host=membership.host)
            for lane in engine.all_lanes
        ]
        found = DeviceList(devices=[*own, *membership.remote_devices()])
        return answered(found)

    return router


def for_heartbeat(engine: LocalEngine) -> list[dict[str, Any]]:
    """What a heartbeat says of this server's devices."""
    return written([(_device(lane), lane.activity.numbers()) for lane in engine.all_lanes])


def _device(lane: Lane) -> Device:
    status = lane.status()
    begin_ms = now_ms() - int(1000 * (time.monotonic() % STEP_S))
    return Device(
        name=status.name,
        label=status.device,
        state=status.state,
        reason=status.reason,
        queued=status.queued,
        in_flight=status.in_flight,
        restarts=status.restarts,
        step_s=STEP_S,
        steps=[_step(step, begin_ms) for step in lane.activity.last_hour()],
    )


def _step(step: ActivityStep, begin_ms: int) -> DeviceStep:
    """A step, given the begin of the one that has not ended, in milliseconds since 1970."""
    reading = step.reading
    return DeviceStep(
        started_at=moment(begin_ms + step.number * STEP_S * 1000),
        calls=step.calls,
        calls_s=step.calls_s,
        blocks_s=step.blocks_s,
        reading=None if reading is None else DeviceReading(**asdict(reading)),
    )
