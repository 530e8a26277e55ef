"""A body that comes compressed, read as if it did not."""

from __future__ import annotations

import asyncio
import zlib

from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.text import brief

SOURCE_BYTES = 16 << 10  # of compressed data, and
PIECE_BYTES = 256 << 10  # of inflated data, at most, in a round of the event loop: about 1 ms
MAX_RATIO = 100  # of inflated to compressed bytes; JSON of random numbers has 2 to 4
FREE_BYTES = 1 << 20  # that may be inflated at any ratio
_WINDOWS = {"gzip": 31, "deflate": 15}  # what zlib calls these: of the largest size, with a header


def open_body(exchange: Exchange, watchdog: ClientWatchdog, limit: int) -> Body:
    """The body of a request, of at most `limit` bytes, inflated if its Content-Encoding says so."""
    given = exchange.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if given in ("", "identity"):
        return Body(exchange, watchdog, limit)
    if given not in _WINDOWS:
        raise UnsupportedMedia(
            f"the Content-Encoding must be gzip or deflate, or absent, got {brief(given)}",
            field="content-encoding",
        )
    return InflatedBody(exchange, watchdog, limit, given)


class InflatedBody(Body):
    """Inflates no more at a time than is asked for: a small body may claim to be a huge one.

    Args:
        limit: bytes, before and after inflating.
    """

    def __init__(
        self, exchange: Exchange, watchdog: ClientWatchdog, limit: int, coding: str
    ) -> None:
        super().__init__(exchange, watchdog, limit)
        self._coding = coding
        self._inflater = zlib.decompressobj(_WINDOWS[coding])
        self._inflated = 0
        self._source: memoryview | bytes = b""  # received and not yet given to the inflater
        self._used = 0  # bytes of it given to the inflater

    @property
    def declared(self) -> int | None:
        """How long it will be nobody says."""
        return None

    async def chunk(self) -> memoryview | bytes:
        """The next bytes; empty at the end of the body."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        while True:
            source = self._inflater.unconsumed_tail
            if not source:
                if self._source:
                    await asyncio.sleep(0)  # other requests have their turn
                else:
                    self._source = memoryview(await super().chunk())
                source = bytes(self._source[:SOURCE_BYTES])
                self._source = self._source[SOURCE_BYTES:]
                self._used += len(source)
            else:
                await asyncio.sleep(0)  # other requests have their turn
            try:
                data = self._inflater.decompress(source, PIECE_BYTES)
            except zlib.error:
                raise InvalidInput(
                    f"the body must be {self._coding}, as its Content-Encoding says, it is not",
                    field="body",
                ) from None
            if self._inflater.unused_data:
                raise InvalidInput(
                    f"the body must end with its {self._coding} data, more follows", field="body"
                )
            self._inflated += len(data)
            if self._inflated > self._limit:
                raise self._too_large(self._inflated)
            if self._inflated > max(FREE_BYTES, MAX_RATIO * self._used):
                raise InvalidInput(
                    f"the body must not inflate to more than {MAX_RATIO} times its bytes beyond "
                    f"the first {FREE_BYTES}, {self._used} bytes became {self._inflated} or more",
                    field="body",
                )
            if data:
                return data
            if not source:
                self._check_end()
                return b""

    def _check_end(self) -> None:
        if not self._inflater.eof:
            raise InvalidInput(
                f"the body must be whole {self._coding} data, its end is missing", field="body"
            )

    def _is_rest(self, nbytes: int) -> bool:
        return False  # nothing can go straight to its place
