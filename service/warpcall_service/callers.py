"""Who calls: what the rest of the server may know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of the server, and what he may do."""

    name: str
    role: str


LOCAL = Caller("local", "admin")  # everyone who reaches a server without keys

# From the headers of a request to its caller; raises a Problem for one who may not enter.
Identify = Callable[[Mapping[bytes, bytes]], Caller]


def everyone_is_local(headers: Mapping[bytes, bytes]) -> Caller:
    """How a server without keys tells its callers apart: not at all."""
    return LOCAL


def caller_of(scope: Scope) -> Caller:
    """The caller of a request that has passed the door."""
    caller: Caller = scope["state"].get("caller", LOCAL)
    return caller
