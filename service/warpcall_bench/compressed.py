"""Responses that are compressed with gzip for readers who accept it: pages and their files."""

from __future__ import annotations

import asyncio
import gzip
import zlib

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

LEAST_BYTES = 1024  # shorter responses would save less than a packet
LEVEL = 5  # a page of 160 KB takes 1 ms and becomes 13 KB; with 9 it takes three times as long
# Longer ones are compressed in a thread, during which the event loop serves others.
THREAD_BYTES = 16 << 10


GZIP_FORMAT = 16 + zlib.MAX_WBITS  # what zlib calls a stream with the head of gzip


class Compressed(Response):
    """A response to a GET whose body is compressed while it is sent.

    The answers to forms are not compressed. They may have a secret, such as a new key, beside a text
    that somebody else has chosen, whose likeness to the secret would show in the length.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        request = Request(scope)
        self.headers["vary"] = "accept-encoding"
        if request.method == "GET" and len(self.body) >= LEAST_BYTES and accepts_gzip(request):
            body = bytes(self.body)
            if len(body) < THREAD_BYTES:
                self.body = pack(body)
            else:
                self.body = await asyncio.to_thread(pack, body)
            self.headers["content-encoding"] = "gzip"
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


class PartsCompressor:
    """Compresses the parts of one response. A reader can decompress each part when it arrives."""

    def __init__(self) -> None:
        self._made = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP_FORMAT)

    async def part(self, body: bytes) -> bytes:
        """The compressed part."""
        if len(body) < THREAD_BYTES:
            return self._part(body)
        return await asyncio.to_thread(self._part, body)

    def end(self) -> bytes:
        """What follows the last part."""
        return self._made.flush()

    def _part(self, body: bytes) -> bytes:
        return self._made.compress(body) + self._made.flush(zlib.Z_SYNC_FLUSH)


def pack(body: bytes, level: int = LEVEL) -> bytes:
    """The same in gzip's format, without the time, so that it is the same each time."""
    return gzip.compress(body, level, mtime=0)


def accepts_gzip(request: Request) -> bool:
    """Whether the header Accept-Encoding of a request names gzip."""
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, parameter = part.partition(";")
        if name.strip() == "gzip":
            return parameter.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
