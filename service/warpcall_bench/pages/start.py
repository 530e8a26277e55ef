"""The page `/start`: what this is, and the first commands, with this server's address in them."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from warpcall_bench.pages.view import View, page, render
from warpcall_service.extension import Engine
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import LOCAL


def routes(engine: Engine, uploads: Callable[[], str]) -> APIRouter:
    """The page. `uploads` returns what /readyz says of uploads."""
    router = APIRouter(include_in_schema=False)

    @router.get("/start")
    async def start(request: Request, caller: CurrentCaller) -> Response:
        text = render(
            "start.html",
            View.of(request),
            address=str(request.base_url).rstrip("/"),
            has_keys=caller is not LOCAL,
            has_gpu=has_gpu(engine),
            uploads=uploads(),
        )
        return page(request, text)

    return router


def has_gpu(engine: Engine) -> bool:
    """Whether a device of this server is a GPU."""
    return any(lane.name != "cpu" for lane in engine.all_lanes)
