"""The server: one event loop that starts the lanes, serves HTTP, and leaves in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import uvicorn
import uvloop

from warpcall_service.app import create_app
from warpcall_service.callers import Identify, everyone_is_local
from warpcall_service.engine import EngineError, LocalEngine
from warpcall_service.protocol import Connection
from warpcall_service.settings import Settings

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close them and not we

log = logging.getLogger("warpcall")


class ServerError(Exception):
    """The server cannot start; the message is for its operator."""


def serve(settings: Settings, identify: Identify = everyone_is_local) -> None:
    """Serve until a signal says to stop: SIGTERM or SIGINT once to drain, twice to leave at once.

    Args:
        identify: tells who sent a request.

    Raises:
        ServerError: the address is not to be had, or no lane can start.
    """
    listener = _listen(settings.host, settings.port)
    with contextlib.closing(listener), asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        try:
            loop.run(_serve(settings, listener, identify))
        except EngineError as error:
            raise ServerError(str(error)) from None


async def _serve(settings: Settings, listener: socket.socket, identify: Identify) -> None:
    stop = _Stop()
    engine = LocalEngine(settings)
    if not await stop.or_done(engine.start()):
        return
    try:
        app = create_app(settings, engine, lambda: server.should_exit, identify)
        server = _Server(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
            )
        )
        stop.server = server
        devices = ", ".join(lane.device for lane in engine.status() if lane.state == "ready")
        sys.stdout.write(f"Warpcall listens on {_url(listener)}, kernels run on {devices}\n")
        sys.stdout.flush()
        await server.serve(sockets=[listener])
    finally:
        await engine.stop()
        log.info("the server has stopped")


class _Server(uvicorn.Server):
    """uvicorn's, with its signals left to us: it raises them again at its end, before ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stop:
    """What SIGTERM and SIGINT do, from the first moment to the last."""

    def __init__(self) -> None:
        self.server: _Server | None = None
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask, number)

    async def or_done(self, start: Coroutine[Any, Any, None]) -> bool:
        """Await `start`, unless asked to stop before; whether it came to its end."""
        starting = asyncio.create_task(start)
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return False
        starting.result()
        return True

    def _ask(self, number: signal.Signals) -> None:
        log.info("%s: the server stops", signal.Signals(number).name)
        self._asked.set()
        if self.server is not None:
            self.server.force_exit = self.server.should_exit
            self.server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Listen at once: who comes while the lanes start waits for them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ServerError(
            f"WARPCALL_HOST and WARPCALL_PORT: cannot listen on {host}:{port}: {error.strerror}"
        ) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
