"""The user who calls: name, role, limits, and what they have in flight."""

from __future__ import annotations

from fastapi import Response

from warpcall.errors import Busy
from warpcall.users import InFlight, Me, UserLimits
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.http.router import Router
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.engine import LocalEngine


def me(engine: LocalEngine, limits: Limits) -> Router:
    """The route about the user who calls."""
    router = Router(prefix="/v1/me", tags=["users"])
    quotas = engine.quotas

    @router.get("", response_model=Me, responses=problem_responses([Busy]))
    async def get_me(caller: CurrentCaller) -> Response:
        """Your name, your role, your limits, and what you have in flight."""
        most = None if caller is LOCAL else quotas.count(caller.name, "user_max_requests")
        found = Me(
            name=caller.name,
            role=caller.role,
            limits=UserLimits(
                requests_in_flight=most,
                bytes_in_flight=quotas.count(caller.name, "user_max_bytes"),
                requests_per_s=quotas.limit(caller.name, "user_requests_per_s"),
            ),
            in_flight=InFlight(
                requests=limits.in_flight(caller.name), bytes=engine.nbytes_of(caller.name)
            ),
        )
        return answered(found)

    return router
