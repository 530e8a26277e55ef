"""What each user has used, by day and op."""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from warpcall_service.auth import users
from warpcall_service.http.openapi_parts import Model

MAX_DAYS = 3650
DAY_S = 86_400


class UsageEntry(Model):
    """What one user has used on one day (UTC) for one op; `op` is empty for other requests.

    `failures` are requests that were answered with an error, `bytes_in` and `bytes_out` bytes of
    bodies, `kernel_ms` device time in milliseconds.
    """

    day: str
    user: str
    op: str
    requests: int
    failures: int
    bytes_in: int
    bytes_out: int
    kernel_ms: float


class UsageList(Model):
    """What each user has used, the earliest day first."""

    usage: list[UsageEntry]


def usage_of(session: Session, days: int, user: str | None) -> list[UsageEntry]:
    """The usage of the last days, up to today, of all users or one."""
    first = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (days - 1) * DAY_S))
    return [
        UsageEntry(
            day=row.day,
            user=row.user_name,
            op=row.op,
            requests=row.requests,
            failures=row.failures,
            bytes_in=row.bytes_in,
            bytes_out=row.bytes_out,
            kernel_ms=row.kernel_us / 1e3,
        )
        for row in users.usage(session, first, user)
    ]
