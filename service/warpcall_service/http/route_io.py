"""What FastAPI's routes receive and send, under the same limits of time as the calls.

A route is not cancelled while it works, nor when its client leaves: only while the server waits for
the client, in `RouteIO.receive` and `RouteIO.send`.
"""

from __future__ import annotations

from fastapi import Request
from starlette.types import Message

from warpcall.errors import TooLarge
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import Watch


class RouteIO:
    """ASGI's receive and send of one request, whose client `watch` limits in time."""

    def __init__(self, exchange: Exchange, watch: Watch) -> None:
        self._exchange = exchange
        self._watch = watch
        watch.our_turn()

    async def receive(self) -> Message:
        """The next piece of the body; at its end, that the client has left."""
        if self._exchange.complete:
            return await self._exchange.receive()
        self._watch.their_turn()
        try:
            message = await self._exchange.receive()
        finally:
            self._watch.our_turn()
        self._watch.progress(len(message.get("body", b"")))
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
        self._watch.answering()
        if part := message.get("body", b""):
            await self._exchange.send_part(memoryview(part), self._watch.progress)
        if not message.get("more_body", False):
            await self._exchange.skip_long_rest()
            await self._exchange.send({"type": "http.response.body", "body": b""})
        self._watch.our_turn()


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
