"""Deadlines, on the clock of time.monotonic."""

from __future__ import annotations

import time


def left_s(deadline: float) -> float:
    """Seconds until the deadline; past it, TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline passed")
    return seconds
