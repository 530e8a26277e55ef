"""The body of a request, read once and in order."""

from __future__ import annotations

from warpcall.errors import InvalidInput, TooLarge, sizes
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.receive import DIRECT_BYTES
from warpcall_service.http.watchdog import ClientWatchdog

# What a format may add to the tensors of a body: the header of safetensors has at most 128 KiB, the JSON of an
# inference request 512 KiB, and each part of a form has a head.
FRAMING_BYTES = 1 << 20


class Body:
    """Reads the body of a request as the transport delivers it.

    Args:
        limit: of bytes, beside FRAMING_BYTES. A longer body is TooLarge; if its length is declared,
            before it is read.
    """

    def __init__(self, exchange: Exchange, watchdog: ClientWatchdog, limit: int) -> None:
        self._exchange = exchange
        self.watchdog = watchdog
        self._limit = limit + FRAMING_BYTES
        self._rest: memoryview | bytes = b""
        if exchange.declared is not None and exchange.declared > self._limit:
            raise self._too_large(exchange.declared)

    @property
    def user(self) -> str:
        """The name of the user who sends it."""
        return self._exchange.caller.name

    @property
    def declared(self) -> int | None:
        """Bytes by Content-Length; None if the body is chunked."""
        return self._exchange.declared

    async def chunk(self) -> memoryview | bytes:
        """Return the bytes that have arrived, or wait for some. Empty bytes mean the end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        exchange = self._exchange
        while not exchange.complete:
            message = await exchange.receive()
            data: bytes = message.get("body", b"")
            if data:
                if exchange.received > self._limit:
                    raise self._too_large(exchange.received)
                self.watchdog.progress(len(data))
                return data
        return b""

    async def exactly(self, nbytes: int) -> bytes:
        """Return the next `nbytes` bytes, or fewer if the body ends before."""
        data = await self.chunk()
        if len(data) < nbytes:
            parts = bytearray(data)
            while len(parts) < nbytes and (more := await self.chunk()):
                parts += more
            data = memoryview(parts)
        view = memoryview(data)
        self._rest = view[nbytes:]
        return bytes(view[:nbytes])

    async def into(self, target: memoryview, what: str) -> None:
        """Fill `target` with the next bytes. Messages call these bytes `what`."""
        filled, size = 0, len(target)
        while filled < size:
            if self._is_rest(size - filled):
                await self._exchange.receive_into(target[filled:], self.watchdog.progress)
                return
            data = await self.chunk()
            if not data:
                raise InvalidInput(
                    f"{what} must have {size} bytes, got {filled}: the body ends early",
                    field="body",
                )
            if len(data) > size - filled:
                view = memoryview(data)
                data, self._rest = view[: size - filled], view[size - filled :]
            target[filled : filled + len(data)] = data
            filled += len(data)

    async def all_into(self, target: memoryview, what: str) -> int:
        """Read the whole body into `target`, and return the body's length."""
        filled = 0
        if self._exchange.declared is not None and self._is_rest(self._exchange.declared):
            filled = self._exchange.declared
            await self._exchange.receive_into(target[:filled], self.watchdog.progress)
        while data := await self.chunk():
            if filled + len(data) > len(target):
                raise TooLarge(
                    f"{what} must have at most {len(target)} bytes, got more", field="body"
                )
            target[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    async def end(self, what: str) -> None:
        """Raise InvalidInput if the body has more bytes. `what` should have been its last part."""
        if data := await self.chunk():
            raise InvalidInput(
                f"{what} must end the body, {len(data)} bytes or more follow", field="body"
            )

    def _is_rest(self, nbytes: int) -> bool:
        """Whether exactly `nbytes` are left, and these are enough to receive them directly."""
        exchange = self._exchange
        return (
            exchange.connection.takes_into
            and nbytes >= DIRECT_BYTES
            and not self._rest
            and exchange.declared is not None
            and exchange.declared - exchange.received == nbytes
        )

    def _too_large(self, nbytes: int) -> TooLarge:
        most, got = sizes(self._limit - FRAMING_BYTES, nbytes)
        return TooLarge(
            f"the body must have at most {most}, the server's max_body_bytes, and 1 MiB around its "
            f"tensors, got {got}",
            field="body",
        )
