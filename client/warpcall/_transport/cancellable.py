"""An asyncio backend for httpcore whose connections close when their task is cancelled.

httpcore's own backend leaves a connection open if its TLS handshake is cancelled. It also looks up
names in threads that asyncio.run waits for at its end.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from warpcall._transport.connect import Endpoint, connect_first
from warpcall.sockets import LOSS_OPTIONS


class CancellableBackend(httpcore.AsyncNetworkBackend):
    """Connects to the first endpoint of a host that accepts the connection."""

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        assert timeout is not None  # each of our requests has a timeout

        async def attempt(endpoint: Endpoint) -> httpcore.AsyncNetworkStream:
            return await self._inner.connect_tcp(
                endpoint.where[0], port, socket_options=LOSS_OPTIONS
            )

        deadline = time.monotonic() + timeout
        failures = (OSError, httpcore.ConnectError)
        try:
            return _Connection(await connect_first((host, port), deadline, attempt, failures))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(error) from error
        except OSError as error:
            raise httpcore.ConnectError(error) from error


class _Connection(httpcore.AsyncNetworkStream):
    """A connection with or without TLS."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            secured = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self.aclose()
            raise
        return _Connection(secured)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
