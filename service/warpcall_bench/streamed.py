"""Responses that are sent piece by piece while they are made."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping

from fastapi import Response
from starlette.types import Receive, Scope, Send

from warpcall.errors import Problem
from warpcall_service.http.exchange import ClientGone, Exchange

WHOLE_BYTES = 64 << 10  # up to here a response is sent in one piece, with its length


class Streamed(Response):
    """A response of unknown length.

    The next piece is made when at most some 64 KiB of the last ones are unsent. The generator of
    the pieces is closed at the end, also when the client leaves. A problem in the middle of the
    response aborts the connection, so that what was sent is not taken for the whole.

    Args:
        first: the first piece.
        pieces: the others. An empty piece is not sent: it makes this check whether the client left.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._first = first
        self._pieces = pieces
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        exchange: Exchange = scope["state"]["exchange"]
        async with contextlib.aclosing(self._pieces):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            self._first = b""
            try:
                async for piece in self._pieces:
                    if piece:
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await send(message)
                    elif exchange.connection.is_closing:
                        raise ClientGone
            except Problem as problem:
                await exchange.refuse(problem)
                return
            await send({"type": "http.response.body", "body": b""})


async def streamed(pieces: AsyncGenerator[bytes, None], media_type: str) -> Response:
    """A response out of pieces. If the first WHOLE_BYTES raise a problem, that is the response."""
    made = bytearray()
    try:
        async for piece in pieces:
            made += piece
            if len(made) > WHOLE_BYTES:
                return Streamed(bytes(made), pieces, media_type)
    except BaseException:
        await pieces.aclose()
        raise
    return Response(bytes(made), media_type=media_type)
