"""The application in this process behind a real socket, which tells how many requests it was passed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from tests.app.harness import App
from warpcall_service.http.connection import Connection
from warpcall_service.http.server import HttpServer


class Served:
    """A port of this machine.

    Attributes:
        stop: lets the server stop, as a signal does.
        ordinary: the requests so far that entered the application as ASGI messages. Those that take the
            short way do not.
    """

    stop: Callable[[], None]

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.port = port
        self.ordinary = 0

    async def asgi(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Count a request, and pass it on."""
        self.ordinary += 1
        await self.app.asgi(scope, receive, send)


@contextmanager
def served(app: App, keep_alive_s: int = 30) -> Iterator[Served]:
    """Serve on a free port, with the connections of the real server.

    Args:
        keep_alive_s: after which an idle connection is closed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Served(app, listener.getsockname()[1])
        config = uvicorn.Config(
            made.asgi,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=keep_alive_s,
        )
        server = HttpServer(config, None, drain_s=5, unread_s=5)
        serving = asyncio.run_coroutine_threadsafe(server.serve([listener]), app.loop)
        made.stop = partial(setattr, server, "should_exit", True)
        try:
            yield made
        finally:
            made.stop()
            serving.result(30)
