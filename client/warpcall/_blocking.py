"""Runs the coroutines of the core for the blocking client, without an event loop.

The core is written once, as coroutines. Over a blocking transport none of them suspends: the
transport waits in the calling thread instead of yielding to a loop. One step therefore runs a
coroutine to its end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a blocking transport, and return its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a blocking transport suspended")


def each_now(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an asynchronous generator over a blocking transport, without None."""

    async def following() -> T | None:
        return await anext(items, None)

    try:
        while (item := run_now(following())) is not None:
            yield item
    finally:
        run_now(items.aclose())
