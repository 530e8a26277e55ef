"""The caller of a request, as routes get it, and the role that a route needs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.types import Scope

from warpcall_service.identity import Caller, Role


def caller_of(scope: Scope) -> Caller:
    """The user who sent the request of this ASGI scope."""
    caller: Caller = scope["state"]["caller"]
    return caller


# Dependencies of routes are coroutines although they await nothing. FastAPI would run a plain
# function in a thread: that costs more than the function, and the first thread needs descriptors,
# which may be used up.
async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


CurrentCaller = Annotated[Caller, Depends(_caller)]  # the type of a route's argument


def needs(role: Role) -> dict[str, Any]:
    """Arguments of a route's decorator that refuse callers without `role`: `**needs("admin")`."""

    async def check(caller: CurrentCaller) -> None:
        caller.check(role)

    return {"dependencies": [Depends(check)], "openapi_extra": {"x-warpcall-role": role}}
