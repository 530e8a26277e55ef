"""The user who calls: name, role, limits, and what they have in flight."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response

from warpcall.errors import Busy
from warpcall.users import InFlight, Me, UserLimits
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings


def me(settings: Settings, engine: LocalEngine, limits: Limits) -> APIRouter:
    """The route about the user who calls."""
    router = APIRouter(prefix="/v1/me", tags=["users"])
    allowed = UserLimits(
        requests_in_flight=settings.user_max_requests,
        bytes_in_flight=int(settings.user_max_bytes),
        requests_per_s=settings.user_requests_per_s,
    )

    @router.get("", response_model=Me, responses=problem_responses([Busy]))
    async def get_me(caller: CurrentCaller) -> Response:
        """Your name, your role, your limits, and what you have in flight."""
        found = Me(
            name=caller.name,
            role=caller.role,
            limits=replace(allowed, requests_in_flight=None) if caller is LOCAL else allowed,
            in_flight=InFlight(
                requests=limits.in_flight(caller.name), bytes=engine.nbytes_of(caller.name)
            ),
        )
        return answered(found)

    return router
