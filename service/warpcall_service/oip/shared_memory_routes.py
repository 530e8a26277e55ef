"""The system shared memory extension of the Open Inference Protocol: its routes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from warpcall.errors import Forbidden, InvalidInput, NotFound, TooLarge
from warpcall_service.http.openapi_parts import Model
from warpcall_service.oip.openapi import error_responses
from warpcall_service.oip.routes import json_of
from warpcall_service.oip.shared_memory import Region, SharedMemory
from warpcall_service.settings import Settings
from warpcall_service.text import brief

MEMBERS = frozenset({"key", "offset", "byte_size"})


class RegionModel(Model):
    """A region that the caller registered."""

    name: str
    key: str
    offset: int
    byte_size: int


def routes(settings: Settings, shared: SharedMemory) -> APIRouter:
    """Routes to register, list and unregister regions. A caller sees only their own."""
    router = APIRouter(prefix="/v2/systemsharedmemory", tags=["open inference protocol"])
    local_only = error_responses([Forbidden])

    def owner_of(request: Request) -> str:
        return shared.owner(request.scope["state"]["exchange"])

    @router.get("/status", response_model=list[RegionModel], responses=local_only)
    async def all_regions(request: Request) -> Response:
        """The caller's regions."""
        return JSONResponse(
            [_describe_region(region) for region in shared.regions(owner_of(request))]
        )

    @router.get(
        "/region/{region}/status",
        response_model=list[RegionModel],
        responses=error_responses([Forbidden, NotFound]),
    )
    async def one_region(request: Request, region: str) -> Response:
        """One of the caller's regions."""
        return JSONResponse([_describe_region(shared.region(owner_of(request), region))])

    @router.post(
        "/region/{region}/register",
        responses=error_responses([Forbidden, InvalidInput, TooLarge]),
    )
    async def register(request: Request, region: str) -> dict[str, Any]:
        """Register a range of a POSIX shared memory segment: `{key, offset, byte_size}`."""
        owner = owner_of(request)
        asked = await json_of(request)
        for member in asked:
            if member not in MEMBERS:
                raise InvalidInput(
                    f"a region has {', '.join(sorted(MEMBERS))}, got {brief(member)}"
                )
        key = asked.get("key")
        if not isinstance(key, str):
            raise InvalidInput(f"key must be a string, got {brief(key)}", field="key")
        offset = _natural("offset", asked.get("offset", 0), 0)
        nbytes = _natural("byte_size", asked.get("byte_size"), 1)
        shared.register(owner, region, key, offset, nbytes)
        return {}

    @router.post("/unregister", responses=local_only)
    async def unregister_all(request: Request) -> dict[str, Any]:
        """Unregister all of the caller's regions."""
        shared.unregister(owner_of(request))
        return {}

    @router.post("/region/{region}/unregister", responses=local_only)
    async def unregister(request: Request, region: str) -> dict[str, Any]:
        """Unregister a region of the caller. It is no error if there is none."""
        shared.unregister(owner_of(request), region)
        return {}

    return router


def _describe_region(region: Region) -> dict[str, Any]:
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.nbytes,
    }


def _natural(name: str, value: object, minimum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < 1 << 62:
        raise InvalidInput(
            f"{name} must be an integer from {minimum}, got {brief(value)}", field=name
        )
    return value
