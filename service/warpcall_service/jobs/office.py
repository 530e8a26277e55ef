"""Where the asynchronous half of the jobs meets the database: threads of their own, and a bell.

Threads of their own, so that a database that hangs holds up jobs and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from warpcall_service.store import Store
from warpcall_service.store_threads import StoreThreads

THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class Office:
    """Runs functions that take a session, in threads."""

    def __init__(self, store: Store) -> None:
        self._threads = StoreThreads(store, THREADS)
        self._bells: dict[int, asyncio.Event] = {}

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

    def ring(self, number: int) -> None:
        """Something happened to the job of this number."""
        if (bell := self._bells.pop(number, None)) is not None:
            bell.set()

    def bell(self, number: int) -> asyncio.Event:
        """Set when something happens to the job next; look at it first, then read, then wait."""
        return self._bells.setdefault(number, asyncio.Event())

    def close(self) -> None:
        """Let the threads go."""
        self._threads.close()
