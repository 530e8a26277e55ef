"""Times as the database stores them: milliseconds since 1970."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def moment(ms: int) -> str:
    """A time in milliseconds since 1970 as text in the form of RFC 3339, UTC."""
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def now_ms() -> int:
    """The present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
