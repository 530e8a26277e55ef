"""Threads for the use of the database, each use with a deadline.

A database that stands still, such as a stopped PostgreSQL or a file on a stuck disk, blocks whoever
uses it. Here the waiting coroutine gets a StoreError at its deadline, and only the thread stays
behind. The threads are few, and none is added for one that is stuck; they are daemons, so that a
server that stops does not wait for them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from warpcall_service.store.database import Store, StoreError

DEADLINE_S = 15.0  # more than one statement that fails by the database's own limits takes
RETRY_S = 5

T = TypeVar("T")


class StoreThreads:
    """Runs functions that take a session, in threads.

    Args:
        number: of threads at most; further uses wait for them, within their own deadlines.
    """

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._number = number
        self._uses: SimpleQueue[_Use[Any] | None] = SimpleQueue()
        self._running: dict[threading.Thread, float] = {}  # with the deadline of what each runs
        self._threads: list[threading.Thread] = []

    async def read(self, function: Callable[[Session], T], deadline_s: float = DEADLINE_S) -> T:
        """Return what a function finds that only looks.

        Raises:
            StoreError: the database cannot be read, or did not answer in time.
        """
        return await self._run(_Use(lambda use: self._reading(function)), "read", deadline_s)

    async def write(self, function: Callable[[Session], T], deadline_s: float = DEADLINE_S) -> T:
        """Return what a function gives whose changes are all made, or, after an exception, none.

        Raises:
            StoreError: the database cannot be written, or did not answer in time. In the second
                case the changes are made all the same if the database was already about to commit.
        """
        return await self._run(
            _Use(lambda use: self._writing(use, function)), "written", deadline_s
        )

    async def call(self, function: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
        """Return what a function gives that opens its own session to read, if it needs one.

        Raises:
            StoreError: as `read`.
        """
        return await self._run(_Use(lambda use: function()), "read", deadline_s)

    def close(self) -> None:
        """Let the threads end that are not stuck."""
        for _ in self._threads:
            self._uses.put(None)

    async def _run(self, use: _Use[T], verb: str, deadline_s: float) -> T:
        now = time.monotonic()
        overdue = sum(deadline < now for deadline in list(self._running.values()))
        if overdue < self._number:
            use.deadline = now + deadline_s
            self._uses.put(use)
            if len(self._threads) < self._number:
                self._start()
            result = asyncio.wrap_future(use.future)
            try:
                await asyncio.wait((result,), timeout=deadline_s)
            finally:
                late = not result.done()
                result.cancel()  # a use that no thread has begun is not begun any more
            if not late:
                return result.result()
            use.late = True
        raise StoreError(
            f"the database {self._store.label} cannot be {verb}: it did not answer within "
            f"{deadline_s:g} s",
            retry_after_s=RETRY_S,
        )

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="database", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while (use := self._uses.get()) is not None:
            if use.future.set_running_or_notify_cancel():
                self._running[me] = use.deadline
                use.run()
                del self._running[me]

    def _reading(self, function: Callable[[Session], T]) -> T:
        with self._store.read() as session:
            return function(session)

    def _writing(self, use: _Use[T], function: Callable[[Session], T]) -> T:
        with self._store.write() as session:
            result = function(session)
            if use.late:  # whoever asked was told that nothing was written
                raise StoreError("the deadline has passed")
            return result


class _Use(Generic[T]):
    """One use of the database.

    Attributes:
        deadline: by time.monotonic().
        late: whether whoever asked was told that the deadline has passed.
    """

    def __init__(self, how: Callable[[_Use[T]], T]) -> None:
        self.future: Future[T] = Future()
        self.deadline = 0.0
        self.late = False
        self._how = how

    def run(self) -> None:
        """Run it in the current thread, and settle `future`."""
        try:
            result = self._how(self)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is for whoever asked
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
