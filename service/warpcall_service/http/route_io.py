"""What FastAPI's routes receive and send, under the same limits of time as the calls.

A route is not cancelled while it works, nor when its client leaves: only while the server waits for
the client, in `RouteIO.receive` and `RouteIO.send`.
"""

from __future__ import annotations

from fastapi import Request
from starlette.types import Message

from warpcall.errors import TooLarge
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog


class RouteIO:
    """ASGI's receive and send of one request, whose client `watchdog` limits in time."""

    def __init__(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        self._exchange = exchange
        self._watchdog = watchdog
        watchdog.pause()

    async def receive(self) -> Message:
        """The next piece of the body; at its end, that the client has left."""
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
        """Send a part of the answer, and wait until the client took it.

        Each part has its own time: the parts of an event stream come when something happens.
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
    """The whole body of a request to a route; `what` it is, for messages.

    Raises:
        TooLarge: it has more than `limit` bytes.
        TimedOut: it does not come in time.
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
