"""Runs blocking database functions of the jobs in threads, and notifies waiters when a job changes.

The jobs have threads of their own, so that a database that hangs delays jobs and nothing else.
Reads for users have other threads than the scheduler and submissions, so that they delay neither.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from warpcall_bench.jobs import events
from warpcall_service.admission import Admission
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads

THREADS = 4
READ_THREADS = 4
LATEST_S = 0.5  # how long all streams of a job share one read of its latest event

P = ParamSpec("P")
T = TypeVar("T")


class UserReads:
    """Runs reads for users in threads of their own. Waiting users are served in a fair order."""

    def __init__(self, store: Store, threads: int) -> None:
        self.threads = StoreThreads(store, threads)
        self._admission = Admission("reads", threads, math.inf, None, of_user=threads)

    async def read(
        self,
        user: str,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function that only reads, and return what it returns.

        Raises:
            StoreError: the database cannot be read, or does not answer.
        """
        async with self._admission.admitted(user):
            return await self.threads.read(lambda session: function(session, *args, **kwargs))


@dataclass(frozen=True, slots=True)
class _SharedRead:
    """A read of the latest event of a job, and when it began by time.monotonic()."""

    began: float
    found: asyncio.Task[events.Latest]


class JobDatabase:
    """Runs functions that take a session, in threads.

    Attributes:
        lookups: for what users read in one piece.
        exports: for the parts of large answers. It has one thread, so that the event loop competes
            with at most one thread for the interpreter's lock.
    """

    def __init__(self, store: Store) -> None:
        self._threads = StoreThreads(store, THREADS)
        self.lookups = UserReads(store, READ_THREADS)
        self.exports = UserReads(store, 1)
        self._subscribers: dict[int, asyncio.Event] = {}
        self._latest: dict[int, _SharedRead] = {}

    async def read(
        self,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function that only reads, and return what it returns.

        Raises:
            StoreError: the database cannot be read, or does not answer.
        """
        return await self._threads.read(lambda session: function(session, *args, **kwargs))

    async def write(
        self,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function in one transaction, and return what it returns.

        If the function raises an exception, none of its changes are made.

        Raises:
            StoreError: the database cannot be written, or does not answer.
        """
        return await self._threads.write(lambda session: function(session, *args, **kwargs))

    async def latest(self, number: int) -> events.Latest:
        """Where a job stands, at most LATEST_S old.

        All streams of a job share one read of the database. `notify` ends the sharing, so that a
        subscriber who was notified does not get the result of a read that began before the change.
        """
        shared = self._latest.get(number)
        if shared is None or time.monotonic() > shared.began + LATEST_S:
            task = asyncio.create_task(
                self.lookups.threads.read(lambda session: events.latest(session, number))
            )
            # Without this, asyncio would log the error of a read whose waiters have all left.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            shared = self._latest[number] = _SharedRead(time.monotonic(), task)
            asyncio.get_running_loop().call_later(LATEST_S, self._forget, number, shared)
        return await asyncio.shield(shared.found)

    def notify(self, number: int) -> None:
        """Wake all subscribers of a job, because the job has changed."""
        self._latest.pop(number, None)
        if (changed := self._subscribers.pop(number, None)) is not None:
            changed.set()

    def subscribe(self, number: int) -> asyncio.Event:
        """An event that is set at the next change of a job.

        Subscribe first, then read the job, then wait: a change between the read and the wait is
        noticed too.
        """
        return self._subscribers.setdefault(number, asyncio.Event())

    def close(self) -> None:
        """End the threads."""
        for threads in (self._threads, self.lookups.threads, self.exports.threads):
            threads.close()

    def _forget(self, number: int, shared: _SharedRead) -> None:
        if self._latest.get(number) is shared:
            del self._latest[number]
