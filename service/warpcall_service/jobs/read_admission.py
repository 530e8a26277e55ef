"""Admission of what is read for long: exports and comparisons, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL

MAX_READS = 32  # under way in all; each holds a part or two of its answer, about a megabyte
MAX_WAITING = 8  # of one user, beside the one that is under way
RETRY_AFTER_S = 2.0


@dataclass(slots=True)
class _UserReads:
    """The heavy reads of one user: those that wait or are under way are counted."""

    count: int = 0
    one: asyncio.Lock = field(default_factory=asyncio.Lock)


class ReadAdmission:
    """Admits one heavy read of each user at a time, MAX_READS in all; others wait in order.

    Without keys everyone is LOCAL, who stands for many people: only the bound on all reads holds
    for them, else one slow client would keep everyone from reading.

    Args:
        timeout_s: a read that has waited for so long is refused.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._all = asyncio.Semaphore(MAX_READS)
        self._users: dict[str, _UserReads] = {}

    @contextlib.asynccontextmanager
    async def admitted(self, user: str) -> AsyncIterator[None]:
        """Wait until a heavy read of the user may begin; it is under way while the block runs.

        Raises:
            Busy: too many of the user's reads wait, or this one has waited for too long.
        """
        most = MAX_WAITING + (MAX_READS if user == LOCAL.name else 1)
        reads = self._users.setdefault(user, _UserReads())
        if reads.count >= most:
            raise Busy(
                f"{user} has {reads.count} exports and comparisons that are not finished, at most "
                f"{most} are allowed",
                retry_after_s=RETRY_AFTER_S,
            )
        reads.count += 1
        try:
            async with contextlib.AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        if user != LOCAL.name:
                            await held.enter_async_context(reads.one)
                        await held.enter_async_context(self._all)
                except TimeoutError:
                    raise Busy(
                        f"other exports and comparisons were under way for {self._timeout_s:g} s; "
                        "one user may have one at a time",
                        retry_after_s=RETRY_AFTER_S,
                    ) from None
                yield
        finally:
            reads.count -= 1
            if not reads.count:
                del self._users[user]


class StreamLimit:
    """Counts the streams of events that users have open.

    Args:
        most: of one user. LOCAL, who stands for many people, has no such limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def opened(self, user: str) -> Iterator[None]:
        """A stream of the user is open while the block runs.

        Raises:
            Busy: the user has too many.
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
