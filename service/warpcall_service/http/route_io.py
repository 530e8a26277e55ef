"""ASGI's scope, receive and send for FastAPI's routes, with the same time limits as for calls.

The watchdog cancels such a route only while it waits for its client, in `RouteIO.receive` and
`RouteIO.send`: not while it works, and not because the client has left.
"""

from __future__ import annotations

from fastapi import Request
from starlette.types import Message, Scope

from warpcall.errors import TooLarge
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog

MAX_NEXT = 2000  # characters of the path to which a browser goes after it has logged in


class RouteIO:
    """ASGI's receive and send of one request. `watchdog` runs while they wait for the client."""

    def __init__(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        self._exchange = exchange
        self._watchdog = watchdog
        watchdog.pause()

    async def receive(self) -> Message:
        """Receive the next piece of the body; after the body, wait until the client leaves."""
        if self._exchange.complete:
            return await self._exchange.receive()
        self._watchdog.resume()
        try:
            message = await self._exchange.receive()
        finally:
            self._watchdog.pause()
        self._watchdog.progress(len(message.get("body", b"")))
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response, and wait until the client has taken it.

        The time limits start again with each part, because an event stream sends a part whenever
        something happens.
        """
        if message["type"] == "http.response.start":
            if not await self._exchange.skip_rest():
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await self._exchange.send(message)
            return
        self._watchdog.begin_response()
        if part := message.get("body", b""):
            await self._exchange.send_part(memoryview(part), self._watchdog.progress)
        if not message.get("more_body", False):
            await self._exchange.skip_long_rest()
            await self._exchange.send({"type": "http.response.body", "body": b""})
        self._watchdog.pause()


async def body_of(request: Request, limit: int, what: str) -> bytes:
    """Receive the whole body of a request to a route. Messages call the body `what`.

    Raises:
        TooLarge: the body has more than `limit` bytes.
        TimedOut: the body came too slowly.
    """
    exchange: Exchange = request.scope["state"]["exchange"]
    body = bytearray()
    while True:
        nbytes = max(len(body), exchange.declared or 0)
        if nbytes > limit:
            raise TooLarge(f"{what} must have at most {limit} bytes, got {nbytes}", field="body")
        if exchange.complete:
            return bytes(body)
        body += (await request.receive()).get("body", b"")


def path_of(scope: Scope) -> str:
    """The path as routes are declared, without the prefix under which a proxy publishes them."""
    exchange: Exchange = scope["state"]["exchange"]
    path: str = exchange.scope["path"]
    return path


def prefixed(scope: Scope) -> Scope:
    """The scope as ASGI defines it: `path` begins with `root_path`, as in the caller's URL.

    FastAPI needs both for its redirects and for the servers in its OpenAPI description. Without
    the prefix it would take `/jobs` off the path `/jobs/1` of a server that is published as
    `/jobs`.
    """
    root: str = scope["root_path"]
    return {**scope, "path": root + scope["path"]} if root else scope


def local_path(text: str) -> str:
    """The path of this server in `text`, or "/" if a browser could take it for another host.

    Browsers read a backslash as a slash, and leave out control characters.
    """
    is_path = text.startswith("/") and not text.startswith("//") and len(text) <= MAX_NEXT
    is_plain = all("!" <= character <= "~" and character != "\\" for character in text)
    return text if is_path and is_plain else "/"
