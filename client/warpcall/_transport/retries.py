"""When a call is repeated after an error that may pass, and how long it waits before."""

from __future__ import annotations

import random
from collections.abc import Callable

from warpcall.errors import Busy, ConnectionFailed, Unavailable

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 8.0
LONGEST_ABSENCE_PAUSE_S = 1.0  # while the server is away: it is asked again soon after its return
RETRIES = 4
MAY_PASS = (Busy, Unavailable, ConnectionFailed)


class Retries:
    """Counts the failures of one call, and decides whether it is repeated.

    Without a limit by the user, a server that has answered this client before is expected to
    return: a connection that fails is tried again for as long as the call may take, which outlasts
    a restart. A server that answers `Busy` or `Unavailable` RETRIES times is left alone: the call
    may be the cause.

    Args:
        most: the user's limit on the number of repetitions; None for the rules above.
        is_known: whether the server has answered this client before.
    """

    __slots__ = ("_absent", "_is_known", "_most", "_refused", "tries")

    def __init__(self, most: int | None, is_known: bool) -> None:
        self._most = most
        self._is_known = is_known
        self._absent = self._refused = 0
        self.tries = 0

    def pause_s(self, error: Exception, left_s: float, elsewhere: bool = False) -> float | None:
        """Seconds to wait before the call is repeated after `error`; None: it is not repeated.

        Args:
            left_s: seconds that the call may still take.
            elsewhere: whether there is another server, which has not failed this call. It is tried
                at once.
        """
        self.tries += 1
        if elsewhere and left_s > 0 and (self._most is None or self.tries <= self._most):
            return 0.0
        if isinstance(error, ConnectionFailed):
            self._absent, self._refused = self._absent + 1, 0  # what returns is a new server
            failures, longest_s = self._absent, LONGEST_ABSENCE_PAUSE_S
            allowed = self._is_known or failures <= RETRIES
        else:
            self._is_known = True
            self._refused += 1
            failures, longest_s = self._refused, LONGEST_PAUSE_S
            allowed = failures <= RETRIES
        if self._most is not None:
            allowed = self.tries <= self._most
        retry_after_s = getattr(error, "retry_after_s", None)
        pause_s = min(longest_s, pause_before_retry(failures - 1, None))
        if retry_after_s is not None:
            pause_s = pause_before_retry(failures - 1, retry_after_s)
        return pause_s if allowed and pause_s < left_s else None


def pause_before_retry(
    failures: int, retry_after_s: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Seconds to wait before the next try.

    The pause doubles with each failure. It is random in part, so that callers do not return all at
    once. It is never shorter than the server asked for.
    """
    pause_s: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))
    jittered = pause_s * (0.5 + 0.5 * draw())
    return jittered if retry_after_s is None else retry_after_s + jittered / 2
