"""Compressed request bodies: gzip or deflate, decompressed while they are read."""

from __future__ import annotations

import asyncio
import zlib

from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.text import brief

# At most so many compressed bytes, and so many decompressed bytes, in one step: about 1 ms. Between
# two steps the event loop runs other requests.
SOURCE_BYTES = 16 << 10
PIECE_BYTES = 256 << 10
MAX_RATIO = 100  # of decompressed to compressed bytes; JSON of random numbers has 2 to 4
FREE_BYTES = 1 << 20  # decompressed bytes to which MAX_RATIO does not apply
_WINDOWS = {
    "gzip": 31,
    "deflate": 15,
}  # zlib's `wbits`: the largest window, with the format's header


def open_body(exchange: Exchange, watchdog: ClientWatchdog, limit: int) -> Body:
    """The body of a request, decompressed as its Content-Encoding says."""
    given = exchange.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if given in ("", "identity"):
        return Body(exchange, watchdog, limit)
    if given not in _WINDOWS:
        raise UnsupportedMedia(
            f"the Content-Encoding must be gzip or deflate, or absent, got {brief(given)}",
            field="content-encoding",
        )
    return DecompressedBody(exchange, watchdog, limit, given)


class DecompressedBody(Body):
    """Decompresses in small steps, since a small body can decompress to a huge one.

    Args:
        limit: of bytes, both before and after decompression.
    """

    def __init__(
        self, exchange: Exchange, watchdog: ClientWatchdog, limit: int, coding: str
    ) -> None:
        super().__init__(exchange, watchdog, limit)
        self._coding = coding
        self._decompressor = zlib.decompressobj(_WINDOWS[coding])
        self._decompressed = 0
        self._source: memoryview | bytes = b""  # received, and not yet passed to zlib
        self._used = 0  # bytes passed to zlib

    @property
    def declared(self) -> int | None:
        """None: the length after decompression is known at the end only."""
        return None

    async def chunk(self) -> memoryview | bytes:
        """Return the next decompressed bytes. Empty bytes mean the end of the body."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        while True:
            source = self._decompressor.unconsumed_tail
            if not source:
                if self._source:
                    await asyncio.sleep(0)  # run other requests
                else:
                    self._source = memoryview(await super().chunk())
                source = bytes(self._source[:SOURCE_BYTES])
                self._source = self._source[SOURCE_BYTES:]
                self._used += len(source)
            else:
                await asyncio.sleep(0)  # run other requests
            try:
                data = self._decompressor.decompress(source, PIECE_BYTES)
            except zlib.error:
                raise InvalidInput(
                    f"the body must be {self._coding}, as its Content-Encoding says, it is not",
                    field="body",
                ) from None
            if self._decompressor.unused_data:
                raise InvalidInput(
                    f"the body must end with its {self._coding} data, more follows", field="body"
                )
            self._decompressed += len(data)
            if self._decompressed > self._limit:
                raise self._too_large(self._decompressed)
            if self._decompressed > max(FREE_BYTES, MAX_RATIO * self._used):
                raise InvalidInput(
                    f"the body must not decompress to more than {MAX_RATIO} times its bytes beyond "
                    f"the first {FREE_BYTES}, {self._used} bytes became {self._decompressed} or "
                    "more",
                    field="body",
                )
            if data:
                return data
            if not source:
                self._check_end()
                return b""

    def _check_end(self) -> None:
        if not self._decompressor.eof:
            raise InvalidInput(
                f"the body must be whole {self._coding} data, its end is missing", field="body"
            )

    def _is_rest(self, nbytes: int) -> bool:
        return False  # every byte passes through zlib, so none is received directly
