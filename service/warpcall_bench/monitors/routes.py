"""The HTTP routes of monitors."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Response
from pydantic import StringConstraints

from warpcall.errors import (
    InvalidInput,
    NotFound,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.monitors import MonitorDetails, MonitorList, NewMonitor
from warpcall_bench.jobs.models import MAX_BODY_BYTES, Name
from warpcall_bench.jobs.routes import EVERYONE, MAX_CHANGE_BYTES
from warpcall_bench.json_body import check_members, read_model
from warpcall_bench.monitors.models import MonitorChange, MonitorRequest
from warpcall_bench.monitors.service import MonitorService
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router

MonitorId = Annotated[str, StringConstraints(max_length=64)]


def monitors(service: MonitorService) -> Router:
    """The routes to add, list, read, pause and remove monitors."""
    router = Router(prefix="/v1/monitors", tags=["monitors"])
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    reading = problem_responses([TooLarge, UnsupportedMedia, TimedOut])
    benching = needs("bench")

    def takes(model: type[MonitorRequest | MonitorChange]) -> dict[str, object]:
        body = {"required": True, "content": {JSON: {"schema": ref(model)}}}
        return {**benching["openapi_extra"], "requestBody": body}

    @router.post(
        "",
        response_model=NewMonitor,
        status_code=201,
        responses={**problem_responses([InvalidInput, Unavailable]), **reading},
        dependencies=benching["dependencies"],
        openapi_extra=takes(MonitorRequest),
    )
    async def add_monitor(request: Request, caller: CurrentCaller) -> Response:
        """Repeat a job, for the first time at once, and find steps in its times.

        The jobs run after all others, and give the device up when another job needs it.
        """
        wanted = await read_model(
            request, MonitorRequest, MAX_BODY_BYTES, "the description of a monitor", check_members
        )
        wanted.check_form()
        return answered(await service.add(caller, wanted), 201)

    @router.get("", response_model=MonitorList, responses=lost)
    async def list_monitors(caller: CurrentCaller, user: Name | None = None) -> Response:
        """The caller's own monitors, or those of another user that the caller may read.

        The latest is first. `user=all` lists all monitors that the caller may read.
        """
        wanted = None if user == EVERYONE else user or caller.name
        return answered(await service.list(caller, wanted))

    @router.get("/{id}", response_model=MonitorDetails, responses=lost)
    async def show_monitor(id: MonitorId, caller: CurrentCaller) -> Response:
        """One monitor: its times, run by run, and the steps in them."""
        return answered(await service.show(caller, id))

    @router.patch(
        "/{id}",
        response_model=MonitorDetails,
        responses={**lost, **reading},
        dependencies=benching["dependencies"],
        openapi_extra=takes(MonitorChange),
    )
    async def change_monitor(request: Request, id: MonitorId, caller: CurrentCaller) -> Response:
        """Pause or resume a monitor. Only its user and administrators may."""
        change = await read_model(
            request, MonitorChange, MAX_CHANGE_BYTES, "a change", check_members
        )
        return answered(await service.change(caller, id, change))

    @router.delete("/{id}", status_code=204, responses=lost, **benching)
    async def remove_monitor(id: MonitorId, caller: CurrentCaller) -> Response:
        """Remove a monitor. Its jobs stay, but for one that has not ended, which is cancelled."""
        await service.remove(caller, id)
        return Response(status_code=204)

    return router
