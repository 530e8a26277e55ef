"""Runs uses of the database in threads, each with a deadline.

A database that hangs, such as a stopped PostgreSQL or a file on a disk that does not answer, blocks
the thread that uses it. The waiting coroutine gets a StoreError at its deadline; only the thread
stays blocked. The number of threads is bounded, and a blocked thread is not replaced. The threads
are daemons, so that a server that stops does not wait for them.
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

DEADLINE_S = 15.0  # longer than a statement that fails by the database's own limits
RETRY_S = 5
VERBS = {"read": "read", "write": "written"}  # for messages, by operation

T = TypeVar("T")


class StoreThreads:
    """Runs functions that take a session in threads.

    Args:
        number: the largest number of threads. Further uses wait for a thread until their deadlines.
    """

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._number = number
        self._uses: SimpleQueue[_Use[Any] | None] = SimpleQueue()
        self._running: dict[
            threading.Thread, float
        ] = {}  # and the deadline of the use that each runs
        self._threads: list[threading.Thread] = []

    async def read(self, function: Callable[[Session], T], deadline_s: float = DEADLINE_S) -> T:
        """Run a function that only reads, and return its result.

        Raises:
            StoreError: the database cannot be read, or did not answer in time.
        """
        return await self._count(_Use(lambda use: self._reading(function)), "read", deadline_s)

    async def write(self, function: Callable[[Session], T], deadline_s: float = DEADLINE_S) -> T:
        """Run a function in a transaction, and return its result.

        Raises:
            StoreError: the database cannot be written, or did not answer in time. In the second
                case the changes are still made if the database had already begun to commit.
        """
        return await self._count(
            _Use(lambda use: self._writing(use, function)), "write", deadline_s
        )

    async def call(self, function: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
        """Run a function that opens its own sessions to read, and return its result.

        Raises:
            StoreError: as `read`.
        """
        return await self._count(_Use(lambda use: function()), "read", deadline_s)

    def close(self) -> None:
        """End the threads that are not blocked."""
        for _ in self._threads:
            self._uses.put(None)

    async def _count(self, use: _Use[T], operation: str, deadline_s: float) -> T:
        """Run a use, and count it in `Store.uses`."""
        counts, began = self._store.uses[operation], time.monotonic()
        failed = False
        try:
            return await self._run(use, VERBS[operation], deadline_s)
        except StoreError:
            failed = True
            raise
        finally:
            counts.ended += 1
            counts.failed += failed
            counts.waited_s += time.monotonic() - began

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
                result.cancel()  # so that a use which no thread has begun is never begun
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
            if use.late:  # the caller has been answered that nothing was written
                raise StoreError("the deadline has passed")
            return result


class _Use(Generic[T]):
    """One use of the database.

    Attributes:
        deadline: the time by time.monotonic().
        late: whether the caller has been answered that the deadline has passed.
    """

    def __init__(self, how: Callable[[_Use[T]], T]) -> None:
        self.future: Future[T] = Future()
        self.deadline = 0.0
        self.late = False
        self._how = how

    def run(self) -> None:
        """Run the use in the current thread, and set the result of `future`."""
        try:
            result = self._how(self)
        except BaseException as error:  # noqa: BLE001  # the caller gets every exception
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
