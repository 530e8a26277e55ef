"""Deadlines are times on the clock of time.monotonic."""

from __future__ import annotations

import time


def left_s(deadline: float) -> float:
    """Seconds until the deadline. Raise TimeoutError if it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline passed")
    return seconds
