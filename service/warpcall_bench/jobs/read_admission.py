"""Limits on long reads: exports and comparisons (heavy reads), and streams of events."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.user_admission import RETRY_AFTER_S, UserAdmission

MAX_READS = 32  # heavy reads at once; each holds one or two parts of its answer, about 1 MB
MAX_WAITING = 8  # heavy reads of one user, besides the one that runs


class ReadAdmission(UserAdmission):
    """Admits one heavy read of each user at a time, and MAX_READS in all.

    Args:
        timeout_s: limit on the time that a read waits, in seconds. Then it is refused.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__("exports and comparisons", MAX_READS, MAX_WAITING, timeout_s)


class StreamLimit:
    """Limits the streams of events that each user has open.

    Args:
        most: limit for each user. The user LOCAL, who stands for all callers of a server without
            keys, has none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def opened(self, user: str) -> Iterator[None]:
        """Count a stream of the user until the block ends.

        Raises:
            Busy: the user has `most` streams open.
        """
        if self._open[user] >= self._most and user != LOCAL.name:
            raise Busy(
                f"{user} has {self._open[user]} streams of events open, at most {self._most} are "
                "allowed",
                retry_after_s=RETRY_AFTER_S,
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
