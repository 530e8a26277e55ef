"""When work of users may begin: so many tasks at a time, in fair order, and so many a second."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.fair_queue import FairQueue, QueueEntry

RETRY_AFTER_S = 2.0


class Admission:
    """Admits `most` tasks at a time, `of_user` of each user. Others wait in the order of a `FairQueue`.

    On a server without keys, all callers are the user LOCAL. `of_user` does not apply to them, because
    otherwise one slow client would block all others.

    Args:
        what: names the tasks in messages, such as "exports and comparisons".
        most: tasks at a time; `math.inf` means any number.
        most_waiting: tasks of one user that may wait, besides those that run; `math.inf` as above.
        timeout_s: limit on the time that a task waits, in seconds. Then it is refused. None means that
            it waits as long as necessary.
        of_user: tasks of one user at a time, or a function that returns this for a user.
        quota: name of the quota that `of_user` is, for messages; empty if it is none.
    """

    def __init__(
        self,
        what: str,
        most: float,
        most_waiting: float,
        timeout_s: float | None,
        of_user: float | Callable[[str], float] = 1,
        quota: str = "",
    ) -> None:
        self._what = what
        self._most = most
        self._most_waiting = most_waiting
        self._timeout_s = timeout_s
        self._of_user = of_user if callable(of_user) else lambda user: of_user
        self._by_quota = f" by the quota {quota}" if quota else ""
        self._running: Counter[str] = Counter()  # tasks by user; users without any are left out
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @property
    def count(self) -> int:
        """Tasks that run or wait."""
        return self._running.total() + self._queue.count

    def count_of(self, user: str) -> int:
        """Tasks of the user that run or wait."""
        return self._running[user] + self._queue.count_of(user)

    @asynccontextmanager
    async def admitted(self, user: str, nbytes: int = 0) -> AsyncIterator[None]:
        """Wait until a task of the user may start. It counts until the block ends.

        Args:
            nbytes: what the task costs in the fair order, beside `fair_queue.CALL_BYTES`.

        Raises:
            Busy: too many tasks of the user wait, or this one waited for `timeout_s`.
        """
        if self._may_start(user):
            self._running[user] += 1
            self._queue.charge(user, nbytes)
        else:
            await self._wait(user, nbytes)
        try:
            yield
        finally:
            self._end(user)

    def _most_of(self, user: str) -> float:
        return self._most if user == LOCAL.name else self._of_user(user)

    def _may_start(self, user: str) -> bool:
        return self._running.total() < self._most and self._running[user] < self._most_of(user)

    def _is_eligible(self, entry: QueueEntry[asyncio.Future[None]]) -> bool:
        return self._may_start(entry.user)

    async def _wait(self, user: str, nbytes: int) -> None:
        """Return once a task of the user has been counted as one that runs."""
        count = self.count_of(user)
        most = self._most_of(user) + self._most_waiting
        if count >= most:
            state = "that are not finished" if self._most_waiting else "open"
            raise Busy(
                f"{user} has {count} {self._what} {state}, at most {most} are allowed"
                f"{self._by_quota}",
                retry_after_s=RETRY_AFTER_S,
            )
        granted = asyncio.get_running_loop().create_future()
        entry = self._queue.enqueue(user, nbytes, granted)
        try:
            async with asyncio.timeout(self._timeout_s):
                await granted
        except BaseException as error:
            self._queue.remove(entry)
            if granted.done() and not granted.cancelled():
                self._end(user)  # it was admitted just before
            if isinstance(error, TimeoutError):
                raise Busy(
                    f"other {self._what} were under way for {self._timeout_s:g} s; "
                    f"{self._limits(user)}",
                    retry_after_s=RETRY_AFTER_S,
                ) from None
            raise

    def _limits(self, user: str) -> str:
        """What may run at a time, of the user and of all users."""
        limits = (("one user may", self._most_of(user)), ("all users together may", self._most))
        said = [
            f"{who} have {'one' if most == 1 else f'{most:g}'} at a time"
            for who, most in limits
            if math.isfinite(most)
        ]
        return ", ".join(dict.fromkeys(said))

    def _end(self, user: str) -> None:
        """Count a task as ended, and start those that may start now."""
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        while entry := self._queue.peek(self._is_eligible):
            if entry.item.cancelled():  # the waiting task is about to leave
                self._queue.remove(entry)
                continue
            self._queue.dequeue(entry)
            self._running[entry.user] += 1
            entry.item.set_result(None)
        if not self.count:
            self._queue.reset()


class TokenBucket:
    """Limits events to `1 / refill_s` a second on average; `size` of them may come at once.

    Times are those of time.monotonic().

    Args:
        size: tokens in the full bucket, which it is at the beginning.
        refill_s: seconds until there is one more.
    """

    __slots__ = ("_at", "_refill_s", "_size", "_tokens")

    def __init__(self, size: float, refill_s: float, now: float) -> None:
        self._size = size
        self._refill_s = refill_s
        self._tokens = size  # at the time `_at`
        self._at = now

    def take(self, now: float) -> float:
        """Take one token; return 0, or if there was none the seconds until there is one."""
        self._refill(now)
        if self._tokens < 1:
            return (1 - self._tokens) * self._refill_s
        self._tokens -= 1
        return 0.0

    def spend(self, now: float, tokens: float) -> float:
        """Take tokens, also some that are not there yet; return the seconds until they are."""
        self._refill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens * self._refill_s)

    def give_back(self) -> None:
        """Return one token that was taken for nothing."""
        self._tokens += 1

    def _refill(self, now: float) -> None:
        self._tokens = min(self._size, self._tokens + (now - self._at) / self._refill_s)
        self._at = now
