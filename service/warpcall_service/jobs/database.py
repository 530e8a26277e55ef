"""Where the asynchronous half of the jobs meets the database: threads of their own, and a bell.

Threads of their own, so that a database that hangs holds up jobs and nothing else. What users read
has other threads than what runs jobs and takes submissions, so that reads hold up neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from warpcall_service.jobs import events
from warpcall_service.lanes.fair_semaphore import FairSemaphore
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads

THREADS = 4
READ_THREADS = 4
LATEST_S = 0.5  # a look at the latest event of a job is shared for so long by all who watch the job

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the latest event of a job, which began at a time by time.monotonic()."""

    began: float
    found: asyncio.Task[tuple[str, int]]


class JobDatabase:
    """Runs functions that take a session, in threads."""

    def __init__(self, store: Store) -> None:
        self._threads = StoreThreads(store, THREADS)
        self._readers = StoreThreads(store, READ_THREADS)
        self._renderer = StoreThreads(store, 1)
        self._reader_semaphore, self._renderer_semaphore = (
            FairSemaphore(READ_THREADS),
            FairSemaphore(1),
        )
        self._subscribers: dict[int, asyncio.Event] = {}
        self._looks: dict[int, _Look] = {}

    async def read(
        self,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a function finds that only looks.

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
        """What a function gives whose changes are all made, or, after an exception, none.

        Raises:
            StoreError: the database cannot be written, or does not answer.
        """
        return await self._threads.write(lambda session: function(session, *args, **kwargs))

    async def read_for(
        self,
        user: str,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `read`, in the threads for what users read, where waiting users take turns.

        Raises:
            StoreError: the database cannot be read, or does not answer.
        """
        async with self._reader_semaphore.acquire(user, 0):
            return await self._readers.read(lambda session: function(session, *args, **kwargs))

    async def render_for(
        self,
        user: str,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `read_for`, for one part of a large answer.

        There is one thread for the parts of all large answers, so that the event loop competes with
        no more than one thread for the interpreter's lock.

        Raises:
            StoreError: the database cannot be read, or does not answer.
        """
        async with self._renderer_semaphore.acquire(user, 0):
            return await self._renderer.read(lambda session: function(session, *args, **kwargs))

    async def latest(self, number: int) -> tuple[str, int]:
        """The state of a job and the sequence of its latest event, at most LATEST_S old.

        All who watch a job share one look at the database. A look that began before the job's bell
        was rung is not shared any more.
        """
        look = self._looks.get(number)
        if look is None or time.monotonic() > look.began + LATEST_S:
            task = asyncio.create_task(
                self._readers.read(lambda session: events.latest(session, number))
            )
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # noted
            look = self._looks[number] = _Look(time.monotonic(), task)
            asyncio.get_running_loop().call_later(LATEST_S, self._forget, number, look)
        return await asyncio.shield(look.found)

    def notify(self, number: int) -> None:
        """Something happened to the job of this number."""
        self._looks.pop(number, None)
        if (changed := self._subscribers.pop(number, None)) is not None:
            changed.set()

    def subscribe(self, number: int) -> asyncio.Event:
        """Set when something happens to the job next; look at it first, then read, then wait."""
        return self._subscribers.setdefault(number, asyncio.Event())

    def close(self) -> None:
        """Let the threads go."""
        for threads in (self._threads, self._readers, self._renderer):
            threads.close()

    def _forget(self, number: int, look: _Look) -> None:
        if self._looks.get(number) is look:
            del self._looks[number]
