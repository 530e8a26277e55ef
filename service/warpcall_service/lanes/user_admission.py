"""Admits work that is long and that users ask for: one at a time of each user, some in all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL

RETRY_AFTER_S = 2.0


@dataclass(slots=True)
class _UserWork:
    """The work of one user. `count` includes what waits; `one` lets one of them run."""

    count: int = 0
    one: asyncio.Lock = field(default_factory=asyncio.Lock)


class UserAdmission:
    """Admits one task of each user at a time, and `most` in all. Others wait in order.

    On a server without keys, all callers are the user LOCAL. Only the limit on all tasks applies to
    them, because otherwise one slow client would block all others.

    Args:
        what: names the tasks in messages, such as "exports and comparisons".
        most: tasks at once.
        most_waiting: tasks of one user that may wait, besides the one that runs.
        timeout_s: limit on the time that a task waits, in seconds. Then it is refused.
    """

    def __init__(self, what: str, most: int, most_waiting: int, timeout_s: float) -> None:
        self._what = what
        self._most = most
        self._most_waiting = most_waiting
        self._timeout_s = timeout_s
        self._all = asyncio.Semaphore(most)
        self._users: dict[str, _UserWork] = {}

    @property
    def count(self) -> int:
        """Tasks that run or wait."""
        return sum(work.count for work in self._users.values())

    @contextlib.asynccontextmanager
    async def admitted(self, user: str) -> AsyncIterator[None]:
        """Wait until a task of the user may start. It counts until the block ends.

        Raises:
            Busy: too many tasks of the user wait, or this one waited for `timeout_s`.
        """
        most = self._most_waiting + (self._most if user == LOCAL.name else 1)
        work = self._users.setdefault(user, _UserWork())
        if work.count >= most:
            raise Busy(
                f"{user} has {work.count} {self._what} that are not finished, at most "
                f"{most} are allowed",
                retry_after_s=RETRY_AFTER_S,
            )
        work.count += 1
        try:
            async with contextlib.AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        if user != LOCAL.name:
                            await held.enter_async_context(work.one)
                        await held.enter_async_context(self._all)
                except TimeoutError:
                    raise Busy(
                        f"other {self._what} were under way for {self._timeout_s:g} s; "
                        "one user may have one at a time",
                        retry_after_s=RETRY_AFTER_S,
                    ) from None
                yield
        finally:
            work.count -= 1
            if not work.count:
                del self._users[user]
