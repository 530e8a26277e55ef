"""uvicorn's server, with time limits for clients that do not read, and for stopping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from warpcall.errors import Unavailable
from warpcall_service.http.connection import Connection

HANDSHAKE_S = 10.0  # for the TLS handshake; as long as for the head of a request
LAST_ANSWERS_S = 1.0  # for the responses of requests that were cancelled after the drain time
POLL_S = 0.05  # between two looks at the open connections while the server stops
# Descriptors for workers, jobs, the database, logs, and files that Python opens. Without this reserve
# idle connections could take all descriptors of the process: a worker that died could not be
# replaced, no job started, and the database not opened.
RESERVED = 256
TICKS = 10  # iterations of uvicorn's main loop in a second

log = logging.getLogger("warpcall")


class HttpServer(uvicorn.Server):
    """Serves on sockets that listen already.

    uvicorn's handling of signals is off, since it would raise a signal again before the lanes and
    the database are closed.

    Args:
        unix_listener: a Unix socket to serve as well, always without TLS: it crosses no network.
        drain_s: seconds for requests that run when the server stops.
        unread_s: seconds in which a client must read PROGRESS_BYTES, or it is disconnected.
        stop_others: stops the servers of other protocols, whose requests have so many seconds.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        unix_listener: socket.socket | None,
        drain_s: float,
        unread_s: float,
        stop_others: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._stop_others = stop_others
        self._unix_listener = unix_listener
        self._limit = ConnectionLimit()
        self._drain_s = drain_s
        self._unread_s = unread_s

    @property
    def _connections(self) -> list[Connection]:
        return [one for one in self.server_state.connections if isinstance(one, Connection)]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on `sockets` and on the Unix socket."""
        loop, config = asyncio.get_running_loop(), self.config
        self.servers = [
            await loop.create_server(
                self._connection,
                sock=sock,
                backlog=config.backlog,
                ssl=config.ssl,
                ssl_handshake_timeout=HANDSHAKE_S if config.ssl else None,
            )
            for sock in sockets or ()
        ]
        if self._unix_listener is not None:
            self.servers.append(
                await loop.create_unix_server(
                    self._connection, sock=self._unix_listener, backlog=config.backlog
                )
            )
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return self._limit.protocol(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """Once a second, drop the connections whose clients leave what is unsent unread.

        Whatever is unsent when a connection is closed waits for its client, too: nothing else ends
        such a connection.
        """
        if counter % TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._connections:
                if connection.flow.stalled_s(now) > self._unread_s:
                    connection.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end the open ones within `drain_s` plus 2 s.

        At first, running requests may end. After `drain_s` they are cancelled and answered with
        `unavailable`. Connections that are still open 1 s later, since their clients do not read,
        are aborted; uvicorn would wait for them without end.
        """
        others = None
        if self._stop_others is not None:
            drain_s = 0.0 if self.force_exit else self._drain_s
            others = asyncio.ensure_future(self._stop_others(drain_s))
        await self._end_connections(sockets)
        if others is not None:
            await others

    async def _end_connections(self, sockets: list[socket.socket] | None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        for connection in self._connections:
            connection.shutdown()
        if not self.force_exit and await self._are_gone(self._drain_s):
            return
        for task in self.server_state.tasks:
            task.cancel()
        for connection in self._connections:
            if connection.quick.running is not None:
                connection.quick.running.cancel_with(
                    Unavailable("the server is stopping", retry_after_s=1)
                )
        if await self._are_gone(LAST_ANSWERS_S, also_forced=True):
            return
        for connection in self._connections:
            connection.abort()
        await self._are_gone(LAST_ANSWERS_S, also_forced=True)

    async def _are_gone(self, timeout_s: float, *, also_forced: bool = False) -> bool:
        """Wait until all connections and requests have ended, and return whether they have.

        Args:
            also_forced: wait even if a second signal asked to stop at once.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.server_state.connections or self.server_state.tasks:
                    if self.force_exit and not also_forced:
                        return False
                    await asyncio.sleep(POLL_S)
                return True
        return False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConnectionLimit:
    """Makes the asyncio protocol of each new connection.

    A connection beyond the limit is closed at once and without a response: it would keep its
    descriptor until the client has read the response.

    Attributes:
        limit: connections that may be open at the same time.
    """

    def __init__(self) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = max(descriptors - RESERVED, descriptors // 2)
        self._full = False

    def protocol(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol:
        """Return a `Connection`, or beyond the limit a protocol that closes its connection."""
        count = len(server_state.connections)
        if count >= self.limit:
            if not self._full:
                log.error("%d connections are open, more of them are closed at once", count)
            self._full = True
            return _Closed()
        if (
            self._full and count < 0.9 * self.limit
        ):  # at the limit itself this would log far too often
            log.info("%d connections are open, more of them are served again", count)
            self._full = False
        return Connection(config, server_state, app_state)


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.abort()
