"""Who calls: a name and a role, put on every request by the door before anything else looks at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Request
from starlette.types import Scope

from warpcall.errors import Forbidden

Role = Literal["call", "bench", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a request.

    Attributes:
        name: of the user; one user may have several keys.
        role: of the key that came with the request.
        key_id: the public part of that key, empty where none is asked for.
    """

    name: str
    role: Role
    key_id: str = ""

    def may(self, role: Role) -> bool:
        """Whether the caller's role reaches `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def check(self, role: Role) -> None:
        """Raise Forbidden unless the caller `may`."""
        if not self.may(role):
            raise Forbidden(f"this needs a key with the role {role}, got one with {self.role}")


LOCAL = Caller("local", "admin")  # everyone, where no keys exist
NOBODY = Caller("", "call")  # who has not said who he is, on the routes that do not ask


def caller_of(scope: Scope) -> Caller:
    """Who sent the request of this ASGI scope, on whichever road it goes."""
    caller: Caller = scope["state"]["caller"]
    return caller


# Dependencies of routes are coroutines although they await nothing: FastAPI runs plain functions in
# a thread, which costs more than they do, and of which the first needs descriptors.
async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


Calling = Annotated[Caller, Depends(_caller)]  # the caller as an argument of a route


def needs(role: Role) -> dict[str, Any]:
    """What a route with a higher role than "call" adds to its decorator, as `**needs("admin")`."""

    async def check(caller: Calling) -> None:
        caller.check(role)

    return {"dependencies": [Depends(check)], "openapi_extra": {"x-warpcall-role": role}}
