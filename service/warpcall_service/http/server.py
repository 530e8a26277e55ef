"""uvicorn's server, with bounds on how long a connection may stand still and how long stopping takes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from warpcall_service.http.connection import Connection
from warpcall_service.http.connection_limit import ConnectionLimit

HANDSHAKE_S = 10.0  # for TLS, before a connection is closed; as long as for the head of a request
LAST_ANSWERS_S = 1.0  # for requests that were cancelled at the end of the drain time to answer so
POLL_S = 0.05
TICKS = 10  # of uvicorn's main loop in a second


class HttpServer(uvicorn.Server):
    """Serves on sockets that listen already.

    Its signals are left to us: uvicorn raises them again at its end, before our own end.

    Args:
        unix_listener: a Unix socket to serve as well. It never uses TLS: its bytes cross no network.
        drain_s: for requests that run when the server stops.
        unread_s: a connection whose client takes too little of what is unsent is dropped after it.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        unix_listener: socket.socket | None,
        drain_s: float,
        unread_s: float,
    ) -> None:
        super().__init__(config)
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
        """Take no more connections, and end those there are within `drain_s` and 2 s.

        At first the requests that run may end. Then they are cancelled, which they answer with
        `unavailable`. Connections that are left after this, since their clients read nothing, are
        dropped. uvicorn would wait for these without end.
        """
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
        if await self._are_gone(LAST_ANSWERS_S, also_forced=True):
            return
        for connection in self._connections:
            connection.abort()
        await self._are_gone(LAST_ANSWERS_S, also_forced=True)

    async def _are_gone(self, timeout_s: float, *, also_forced: bool = False) -> bool:
        """Wait for connections and their requests to end; whether they did.

        Args:
            also_forced: wait although the server was told to leave at once.
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
