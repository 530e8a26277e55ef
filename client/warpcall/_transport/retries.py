"""When a call is repeated after an error that may pass, and how long it waits before."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 8.0


def pause_before_retry(
    failures: int, retry_after_s: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Seconds to wait before the next try.

    The pause doubles with each failure. It is random in part, so that callers do not return all at
    once. It is never shorter than the server asked for.
    """
    pause_s: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures)
    jittered = pause_s * (0.5 + 0.5 * draw())
    return jittered if retry_after_s is None else retry_after_s + jittered / 2
