"""The types of `GET /v1/me`: the user who calls."""

from __future__ import annotations

from dataclasses import dataclass

from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class UserLimits(Payload):
    """The limits of one user. A request beyond one of them is answered `busy`."""

    requests_in_flight: int | None
    """Requests at once; null, which means no limit, for the user `local`: that is everyone on a
    server without keys."""
    bytes_in_flight: int
    """Bytes of calls at once. A single call may have more if the user has no others."""
    requests_per_s: float
    """Requests per second."""


@dataclass(frozen=True, kw_only=True)
class InFlight(Payload):
    """What one user has in flight at this moment, including this request."""

    requests: int
    """Requests that are not answered yet."""
    bytes: int
    """Bytes of their calls."""


@dataclass(frozen=True, kw_only=True)
class Me(Payload):
    """The user who calls, and their limits."""

    name: str
    """Name of the user; `local` on a server without keys."""
    role: str
    """"call", "bench", "upload" or "admin"."""
    limits: UserLimits
    """What the user may have in flight."""
    in_flight: InFlight
    """What the user has in flight."""
