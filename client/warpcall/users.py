"""The types of `GET /v1/me`, the user who calls, and of the limits of users."""

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
    """"call", "bench", "upload", "scratch" or "admin"."""
    limits: UserLimits
    """What the user may have in flight."""
    in_flight: InFlight
    """What the user has in flight."""


@dataclass(frozen=True, kw_only=True)
class Quota(Payload):
    """One limit of a user, and what they use of it."""

    name: str
    """Name of the quota, which is that of the setting that it replaces: `user_max_jobs`."""
    limit: int | float
    """What the user may have, or use. `user_device_s_per_day` has no limit if it is 0."""
    source: str
    """What the limit comes from: "user" for a quota of the user, "role" for one of their role, or
    "setting"."""
    used: int | float | None
    """What the user has, or uses, of it now; null for `user_requests_per_s`. Requests, bytes in
    flight, stored tensors and streams are those of the server that answers."""


@dataclass(frozen=True, kw_only=True)
class UserQuotas(Payload):
    """All limits of a user."""

    user: str
    """Name of the user."""
    quotas: list[Quota]
    """Each limit."""


@dataclass(frozen=True, kw_only=True)
class StoredQuota(Payload):
    """A limit that an administrator gave to a user or a role."""

    kind: str
    """"user" or "role"."""
    subject: str
    """Name of the user, or the role."""
    name: str
    """Name of the quota."""
    limit: int | float
    """The limit."""
    setting: int | float
    """The limit of users without such a quota."""


@dataclass(frozen=True, kw_only=True)
class QuotaList(Payload):
    """The quotas of users and roles."""

    quotas: list[StoredQuota]
    """Those of roles first."""
    settings: dict[str, int | float]
    """The limits of all other users, by the name of the quota."""
