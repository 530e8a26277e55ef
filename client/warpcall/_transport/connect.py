"""Connects to a server within a deadline. Its name may resolve to several addresses."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from warpcall._transport.deadlines import left_s

Address = tuple[str, int] | str  # host, without brackets, and port; or the path of a Unix socket

T = TypeVar("T")


class Endpoint(NamedTuple):
    """The family of a socket, and an address of that family."""

    family: int
    where: Any


def resolve(address: Address) -> Future[list[Endpoint]]:
    """Look up the endpoints of an address, in the order in which to try them.

    The system's resolver can take 30 s and cannot be interrupted. A name is therefore looked up in
    a daemon thread: the caller can stop waiting, and the process can end.
    """
    found: Future[list[Endpoint]] = Future()
    if isinstance(address, str):
        found.set_result([Endpoint(socket.AF_UNIX, address)])
        return found
    try:
        found.set_result(_endpoints(*address, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):  # the host is a name, not an address
        threading.Thread(target=_look_up, args=(found, *address), daemon=True).start()
    return found


def connect(address: Address, deadline: float) -> socket.socket:
    """Connect to the first endpoint that accepts, in the calling thread.

    Raises:
        TimeoutError: the deadline passed.
        OSError: no endpoint accepts the connection.
    """
    endpoints = resolve(address).result(left_s(deadline))
    failure: OSError = OSError(f"{address[0]} has no address")
    for i, endpoint in enumerate(endpoints):
        sock = socket.socket(endpoint.family)
        try:
            sock.settimeout(share_s(deadline, len(endpoints) - i))
            sock.connect(endpoint.where)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def connect_first(
    address: Address,
    deadline: float,
    attempt: Callable[[Endpoint], Awaitable[T]],
    failures: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Connect to the first endpoint that accepts, in the running loop.

    Args:
        attempt: connects to one endpoint; its result is returned.
        failures: the errors of `attempt` after which the next endpoint is tried.

    Raises:
        TimeoutError: the deadline passed.
        OSError, or another of `failures`: no endpoint accepts the connection.
    """
    async with asyncio.timeout(left_s(deadline)):
        endpoints = await asyncio.wrap_future(resolve(address))
        failure: Exception = OSError(f"{address[0]} has no address")
        for i, endpoint in enumerate(endpoints):
            try:
                async with asyncio.timeout(share_s(deadline, len(endpoints) - i)):
                    return await attempt(endpoint)
            except failures as error:
                failure = error
        raise failure


def why_unreachable(error: BaseException, listener: str) -> str:
    """Why a connection could not be made, for a message. If nothing listens there, it asks for that.

    Args:
        error: the failure, or an error that it caused.
        listener: what should listen there, such as "a Warpcall server running at http://host:8000".
    """
    reason = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            is_refused = isinstance(cause, ConnectionRefusedError)
            # Not `strerror`, for which asyncio has "Connect call failed".
            text = os.strerror(errno.ECONNREFUSED if is_refused else errno.ENOENT)
            return f"{text}; is {listener}?"
        reason = getattr(cause, "strerror", None) or reason or str(cause)
        # httpcore's errors have the socket's error as their first argument.
        inner = cause.args[0] if cause.args else None
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return reason or "the time to connect is over"


def share_s(deadline: float, endpoints: int) -> float:
    """Seconds to try the next of so many endpoints, so that time is left for the others."""
    return left_s(deadline) / endpoints


def _endpoints(host: str, port: int, flags: int = 0) -> list[Endpoint]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Endpoint(family, where) for family, _, _, _, where in found]


def _look_up(found: Future[list[Endpoint]], host: str, port: int) -> None:
    found.set_running_or_notify_cancel()  # it cannot be cancelled from now on
    try:
        found.set_result(_endpoints(host, port))
    except OSError as error:
        found.set_exception(error)
    except UnicodeError:
        found.set_exception(OSError("no host can have this name"))


def is_quiet(sock: socket.socket) -> bool:
    """Whether an idle connection is open, and has no unread bytes, which no request asked for."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
