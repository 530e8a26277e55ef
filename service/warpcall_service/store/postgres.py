"""Connections to PostgreSQL that fail when it does not answer in time.

PostgreSQL itself ends statements that take too long, and TCP ends connections to machines that are
gone. Neither helps when PostgreSQL's processes are stopped, or when a connection pooler has lost
its back end: the driver would then block a thread of the server without limit.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen

T = TypeVar("T")


def limit_answer_time(engine: sa.Engine, answer_s: float) -> None:
    """Make connections of an engine fail and close if an answer takes longer than `answer_s`."""

    class LimitedConnection(psycopg.Connection[Any]):
        def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
            began = time.monotonic()
            try:
                return super().wait(gen, interval, answer_s if timeout is None else timeout)
            except psycopg.OperationalError:
                if time.monotonic() - began < answer_s:
                    raise
                self.close()
                raise psycopg.OperationalError(f"it did not answer within {answer_s:g} s") from None

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> LimitedConnection:
        try:
            return LimitedConnection.connect(*arguments, **options)
        except psycopg.Error as error:
            # The frames of a connection that was not made in time hold its socket, and the
            # exception holds the frames, until the garbage collector finds them.
            raise error.with_traceback(None) from None
