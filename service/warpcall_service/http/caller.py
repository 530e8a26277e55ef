"""The caller of a request: how handlers and routes find them, and the role that a route needs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.types import Scope

from warpcall_service.identity import Caller, Role


def caller_of(scope: Scope) -> Caller:
    """Who sent the request of this ASGI scope, on whichever road it goes."""
    caller: Caller = scope["state"]["caller"]
    return caller


# Dependencies of routes are coroutines although they await nothing: FastAPI runs plain functions in
# a thread, which costs more than they do, and of which the first needs descriptors.
async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


CurrentCaller = Annotated[Caller, Depends(_caller)]  # the caller as an argument of a route


def needs(role: Role) -> dict[str, Any]:
    """What a route with a higher role than "call" adds to its decorator, as `**needs("admin")`."""

    async def check(caller: CurrentCaller) -> None:
        caller.check(role)

    return {"dependencies": [Depends(check)], "openapi_extra": {"x-warpcall-role": role}}
