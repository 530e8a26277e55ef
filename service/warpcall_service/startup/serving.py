"""The part of the server that needs all its modules: its parts, put together, until it stops."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack

import uvicorn

from warpcall import wire
from warpcall_service import logs
from warpcall_service.auth import users
from warpcall_service.auth.users import Snapshot
from warpcall_service.extension import Extension, load
from warpcall_service.http.connection import Connection
from warpcall_service.http.listen import ServerError, listen_shared, url_of
from warpcall_service.http.server import HttpServer
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.nodes.server_identity import ServerIdentity, ServerPlace, own_url
from warpcall_service.oip.grpc import server as grpc_server
from warpcall_service.settings import Settings
from warpcall_service.startup.assembly import application
from warpcall_service.startup.stop import Stop
from warpcall_service.store.database import Store, StoreError

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that clients close them

log = logging.getLogger("warpcall")


async def serve_lanes(
    settings: Settings,
    engine: LocalEngine,
    listener: socket.socket,
    unix_listener: socket.socket | None,
    extension: Extension | None,
    store: Store,
    keys: Snapshot,
    stop: Stop,
    place: ServerPlace | None,
) -> None:
    """Serve on sockets that listen already, with an engine that was started, until `stop`."""
    identity = ServerIdentity.of(settings, "" if place is None else place.name)
    url = settings.advertised_url or url_of(settings, listener, named=True)
    if place is not None:
        url = own_url(url, listener.getsockname()[1])
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            application(
                *(settings, engine, store, keys, identity, url, lambda: stop.requested, extension),
                supervised=place is not None,
            )
        )
        # The objects made so far stay until the end. Without freeze, each full pass of the garbage
        # collector would scan them, and stop the event loop for some 60 ms.
        gc.collect()
        gc.freeze()
        grpc_url, stop_grpc = None, None
        if settings.grpc_port is not None:
            grpc_url, stop_grpc = await stack.enter_async_context(
                grpc_server.serving(settings, app.gateway, shared=place is not None)
            )
        server = HttpServer(
            uvicorn.Config(
                app.gateway,
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=settings.trusted_proxies != "none",
                forwarded_allow_ips=settings.trusted_proxies,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                server_header=False,
                headers=[(wire.NODE_HEADER, app.nodes.id)] if app.nodes.is_shared else [],
                timeout_keep_alive=KEEP_ALIVE_S,
            ),
            unix_listener,
            drain_s=settings.drain_timeout_s,
            unread_s=settings.body_timeout_s,
            stop_others=stop_grpc,
        )
        stop.server = server
        server.should_exit = stop.requested  # a signal may have come while the parts started
        devices = ", ".join(lane.device for lane in engine.status() if lane.state == "ready")
        where = url_of(settings, listener) + (
            f" and unix://{settings.uds}" if unix_listener else ""
        )
        where += "" if grpc_url is None else f" and {grpc_url}"
        listeners = [listener]
        if place is None:
            lines = [f"Warpcall listens on {where}, kernels run on {devices}"]
            if sys.stdout is not None and sys.stdout.isatty():
                needs_key = app.accounts.authenticator.needs_key
                lines += _next_steps(url_of(settings, listener), needs_key, extension is not None)
            logs.announce(*lines)
        else:
            log.info("the server listens on %s, kernels run on %s", where, devices)
            if place.public_port is not None:
                listeners.append(listen_shared(settings.host, place.public_port))
            os.write(place.ready_fd, url.encode())
        await server.serve(sockets=listeners)


def load_extension(settings: Settings) -> Extension | None:
    """The extension, with what its first requests would wait for; None if there is none."""
    found = None if settings.calls_only else load()
    if found is not None:
        found.preload()
    return found


def open_store(settings: Settings) -> tuple[Store, Snapshot]:
    """Open the database, migrate it to the current schema, and read its keys.

    The server does not start if it cannot read the database, which may hold keys, or cannot write
    it.
    """
    url = settings.database_url
    try:
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
        if store.exists:
            store.check_writable()
        store.migrate()
        with store.read() as session:
            keys = users.snapshot(session, Snapshot())
    except StoreError as error:
        raise ServerError(error.reason) from None
    return store, keys


def _next_steps(url: str, needs_key: bool, has_pages: bool) -> list[str]:
    """What a person who started the server at a terminal can do now."""
    command = "login" if needs_key else "ops"
    return [
        *([f"  in a browser:  {url}/ and {url}/docs"] if has_pages else []),
        f"  in a shell:    warpcall {command} --url {url}",
        "  Ctrl-C stops the server",
    ]
