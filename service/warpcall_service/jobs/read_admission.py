"""Limits on long reads: exports and comparisons (heavy reads), and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL

MAX_READS = 32  # heavy reads at once; each holds one or two parts of its answer, about 1 MB
MAX_WAITING = 8  # heavy reads of one user, besides the one that runs
RETRY_AFTER_S = 2.0


@dataclass(slots=True)
class _UserReads:
    """The heavy reads of one user. `count` includes those that wait; `one` lets one of them run."""

    count: int = 0
    one: asyncio.Lock = field(default_factory=asyncio.Lock)


class ReadAdmission:
    """Admits one heavy read of each user at a time, and MAX_READS in all. Others wait in order.

    On a server without keys, all callers are the user LOCAL. Only the limit on all reads applies to
    them, because otherwise one slow client would block all others.

    Args:
        timeout_s: limit on the time that a read waits, in seconds. Then it is refused.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._all = asyncio.Semaphore(MAX_READS)
        self._users: dict[str, _UserReads] = {}

    @contextlib.asynccontextmanager
    async def admitted(self, user: str) -> AsyncIterator[None]:
        """Wait until a heavy read of the user may start. It counts until the block ends.

        Raises:
            Busy: too many reads of the user wait, or this one waited for `timeout_s`.
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
