"""The server: one event loop that starts the lanes, serves HTTP, and stops everything in order.

It listens at once, so that an address in use is an error before anything else starts. Connections
wait in the queues of the listening sockets until a lane is ready. The worker processes import torch
while this process imports the modules of the HTTP server and opens the database, so only what these
first steps need is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import uvloop

from warpcall_service.http.listen import (
    ServerError,
    allow_connections,
    listen,
    listen_unix,
    url_of,
)
from warpcall_service.lanes.engine import EngineError, LocalEngine
from warpcall_service.processes.imports import quick_imports
from warpcall_service.startup.stop import Stop

if TYPE_CHECKING:
    from warpcall_service.nodes.server_identity import ServerPlace
    from warpcall_service.settings import Settings

log = logging.getLogger("warpcall")


def serve(settings: Settings, place: ServerPlace | None = None) -> None:
    """Serve until SIGTERM or SIGINT. The first signal lets requests end, a second of its kind does not.

    Args:
        place: of a server below a supervisor; None for a server of its own.

    Raises:
        ServerError: the database, the certificate or the address cannot be used, other machines
            could call without a key, or no lane can start.
    """
    # Threads read the database and build large responses. By default a thread keeps the lock of the
    # interpreter for 5 ms while the event loop waits for it. With 1 ms, a small call takes 5.5
    # instead of 9.6 ms while eight clients read streams of 100,000 events.
    sys.setswitchinterval(0.001)
    allow_connections()
    with (
        contextlib.ExitStack() as open_sockets,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
    ):
        try:
            listener = open_sockets.enter_context(listen(settings.host, settings.port))
            unix_listener = (
                open_sockets.enter_context(listen_unix(settings.uds)) if settings.uds else None
            )
        except ServerError:
            _load(settings)  # says first why it could not start on any address
            raise
        try:
            loop.run(_serve(settings, listener, unix_listener, place))
        except EngineError as error:
            raise ServerError(str(error)) from None


async def _serve(
    settings: Settings,
    listener: socket.socket,
    unix_listener: socket.socket | None,
    place: ServerPlace | None,
) -> None:
    stop = Stop(settings.stop_s)
    if settings.until:
        stop.request_in(settings.until - settings.stop_s - time.time())
    engine = LocalEngine(settings)
    if place is None:
        log.info("the server listens on %s and starts", url_of(settings, listener))
    parts: list[Any] = []
    if not await stop.or_done(_start(settings, engine, parts)):
        return
    serving, extension, store, keys = parts
    await serving.serve_lanes(
        settings, engine, listener, unix_listener, extension, store, keys, stop, place
    )
    log.info("the server has stopped")


async def _start(settings: Settings, engine: LocalEngine, parts: list[Any]) -> None:
    """Start the lanes, and meanwhile import the other modules and open the database.

    Args:
        parts: gets the module `startup.serving`, the extension, the database, and its keys.
    """
    began = time.monotonic()
    starting = asyncio.create_task(engine.start())
    try:
        await asyncio.sleep(0)  # first the worker processes, which take the longest
        parts += await asyncio.to_thread(_load, settings)
        log.info("the store is open after %.1f s, the lanes start", time.monotonic() - began)
        await starting
    except BaseException:
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await engine.stop()
        else:
            starting.cancel()  # it ends the lanes
            await asyncio.gather(starting, return_exceptions=True)
        raise


def _load(settings: Settings) -> tuple[Any, Any, Any, Any]:
    with quick_imports():
        from warpcall_service.auth import access
        from warpcall_service.startup import serving

    # Here, because the worker processes take longer than this thread.
    extension = serving.load_extension(settings)
    store, keys = serving.open_store(settings)
    access.check_access(settings, keys)
    return serving, extension, store, keys
