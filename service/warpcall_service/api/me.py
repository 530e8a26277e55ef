"""The user who calls: name, role, limits, and what they have in flight."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from warpcall.errors import Busy
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.openapi_parts import Model, problem_responses
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings


class UserLimits(Model):
    """The limits of one user. A request beyond one of them is answered `busy`.

    A single call may have more than `bytes_in_flight` bytes, if the user has no other bytes in
    flight. `requests_in_flight` is null, which means no limit, for the user `local`: that is
    everyone on a server without keys.
    """

    requests_in_flight: int | None
    bytes_in_flight: int
    requests_per_s: float


class InFlight(Model):
    """What one user has in flight at this moment, including this request."""

    requests: int
    bytes: int


class Me(Model):
    """The user who calls, and their limits."""

    name: str
    role: str
    limits: UserLimits
    in_flight: InFlight


def me(settings: Settings, engine: LocalEngine, limits: Limits) -> APIRouter:
    """The route about the user who calls."""
    router = APIRouter(prefix="/v1/me", tags=["users"])
    allowed = {
        "requests_in_flight": settings.user_max_requests,
        "bytes_in_flight": int(settings.user_max_bytes),
        "requests_per_s": settings.user_requests_per_s,
    }

    @router.get("", response_model=Me, responses=problem_responses([Busy]))
    async def get_me(caller: CurrentCaller) -> Response:
        """Your name, your role, your limits, and what you have in flight."""
        in_flight = {
            "requests": limits.in_flight(caller.name),
            "bytes": engine.nbytes_of(caller.name),
        }
        return JSONResponse(
            {
                "name": caller.name,
                "role": caller.role,
                "limits": {**allowed, "requests_in_flight": None} if caller is LOCAL else allowed,
                "in_flight": in_flight,
            }
        )

    return router
