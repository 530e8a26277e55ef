"""Connections of the server's own class in this process, which tests can look into."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from warpcall_service.http.connection import Connection

PATIENCE_S = 20.0
Result = TypeVar("Result")


@dataclass
class Listener:
    """A server on a free port of this machine.

    Attributes:
        connections: those it accepted, in order.
    """

    port: int
    connections: list[Connection] = field(default_factory=list)

    async def connect(self) -> tuple[socket.socket, Connection]:
        """A new client, and the server's side of its connection."""
        client = socket.socket()
        client.setblocking(False)
        count = len(self.connections)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await until(lambda: len(self.connections) > count)
        connection = self.connections[-1]
        await until(lambda: connection.transport is not None)
        return client, connection


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[Listener]:
    """Serve `app` with the server's class of connections."""
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    state = ServerState()

    def accept() -> Connection:
        listener.connections.append(Connection(config, state, {}))
        return listener.connections[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    listener = Listener(server.sockets[0].getsockname()[1])
    try:
        yield listener
    finally:
        server.close()
        for connection in listener.connections:
            connection.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def received(client: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
    """What comes to `client` until it is enough, or the other side closes."""
    loop, came = asyncio.get_running_loop(), b""
    async with asyncio.timeout(PATIENCE_S):
        while not enough(came) and (part := await loop.sock_recv(client, 1 << 16)):
            came += part
    return came


def play(scene: Callable[[], Awaitable[Result]]) -> Result:
    """Run `scene` on the event loop that the server uses."""

    async def run() -> Result:
        return await scene()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
