"""Where the asynchronous half of the jobs meets the database: threads of their own, and a bell.

Threads of their own, so that a database that hangs holds up jobs and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from warpcall_service.store import Store

THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class Office:
    """Runs functions that take a session, in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="jobs")
        self._bells: dict[int, asyncio.Event] = {}

    async def read(
        self,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a function finds that only looks.

        Raises:
            StoreError: there is no looking.
        """
        return await self._run(self._reading, lambda session: function(session, *args, **kwargs))

    async def write(
        self,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a function gives whose changes are all made, or, after an exception, none.

        Raises:
            StoreError: nothing was written.
        """
        return await self._run(self._writing, lambda session: function(session, *args, **kwargs))

    def ring(self, number: int) -> None:
        """Something happened to the job of this number."""
        if (bell := self._bells.pop(number, None)) is not None:
            bell.set()

    def bell(self, number: int) -> asyncio.Event:
        """Set when something happens to the job next; look at it first, then read, then wait."""
        return self._bells.setdefault(number, asyncio.Event())

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(
        self,
        how: Callable[[Callable[[Session], T]], T],
        function: Callable[[Session], T],
    ) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, how, function)

    def _reading(self, function: Callable[[Session], T]) -> T:
        with self._store.read() as session:
            return function(session)

    def _writing(self, function: Callable[[Session], T]) -> T:
        with self._store.write() as session:
            return function(session)
