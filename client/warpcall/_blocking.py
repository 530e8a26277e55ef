"""Runs the coroutines of the SDK for the blocking client, without an event loop.

The SDK is written once, as coroutines. Over a blocking transport none of them suspends: the
transport waits in the calling thread instead of yielding to a loop. One step therefore runs a
coroutine to its end.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of an asynchronous method, with its name, docstring and signature.

        class Jobs:
            queue = blocking(AsyncJobs.queue)

    Args:
        method: a method of the asynchronous class. It runs with the blocking object as `self`. So
            it may use only what both classes have, and must not await other public methods.
    """

    @untraced
    @functools.wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(method(self, *args, **kwargs))

    return run


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """A function of the blocking client, which torch.compile calls instead of tracing it.

    A graph of torch ends before the call and another one begins after it. Without this decorator
    torch.compile traces the coroutine that the function runs, and fails.
    """

    disabled: Callable[P, T] | None = None

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal disabled
        if disabled is None:
            dynamo = sys.modules.get("torch._dynamo")  # torch.compile has imported it
            if dynamo is None:
                return function(*args, **kwargs)
            disabled = dynamo.disable(function)
        return disabled(*args, **kwargs)

    # What torch.compiler.disable sets. This module must not import torch.
    vars(run)["_torchdynamo_disable"] = True
    return run


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
