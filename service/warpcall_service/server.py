"""The server: one event loop that starts the lanes, serves HTTP, and stops everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import math
import signal
import socket
import ssl
import sys
import time
from collections.abc import Coroutine
from typing import Any

import uvicorn
import uvloop

from warpcall_service import logs
from warpcall_service.app import create_app
from warpcall_service.auth import users
from warpcall_service.auth.keys_marker import KeysMarker
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.formats.json_pool import JsonPool
from warpcall_service.http.connection import Connection
from warpcall_service.http.listen import ServerError, allow_connections, listen, listen_unix
from warpcall_service.http.server import HttpServer
from warpcall_service.jobs.service import JobService
from warpcall_service.lanes.engine import EngineError, LocalEngine
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.runs.operator_modules import OperatorModules
from warpcall_service.runs.sandbox import Sandbox
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store, StoreError
from warpcall_service.uploads.checks import Checks
from warpcall_service.uploads.problems import ProblemService
from warpcall_service.uploads.service import ImplementationService

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that clients close them

log = logging.getLogger("warpcall")


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. The first signal lets requests end, a second does not.

    Raises:
        ServerError: the database, the certificate or the address cannot be used, other machines
            could call without a key, or no lane can start.
    """
    # Threads read the database and build large responses. By default a thread keeps the lock of the
    # interpreter for 5 ms while the event loop waits for it. With 1 ms, a small call takes 5.5
    # instead of 9.6 ms while eight clients read streams of 100,000 events.
    sys.setswitchinterval(0.001)
    marker = KeysMarker(settings.data_dir)
    store, keys = _open_store(settings, marker)
    _check_access(settings, keys)
    allow_connections()
    with (
        contextlib.ExitStack() as open_sockets,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
    ):
        listener = open_sockets.enter_context(listen(settings.host, settings.port))
        unix_listener = (
            open_sockets.enter_context(listen_unix(settings.uds)) if settings.uds else None
        )
        try:
            account_sync = AccountSync(store, keys, marker, settings.keys_max_age_s)
            loop.run(_serve(settings, listener, unix_listener, store, account_sync))
        except EngineError as error:
            raise ServerError(str(error)) from None


async def _serve(
    settings: Settings,
    listener: socket.socket,
    unix_listener: socket.socket | None,
    store: Store,
    account_sync: AccountSync,
) -> None:
    stop = _Stop(settings.stop_s)
    if settings.until:
        stop.request_in(settings.until - settings.stop_s - time.time())
    engine = LocalEngine(settings)
    if not await stop.or_done(engine.start()):
        return
    account_sync.start()
    modules = OperatorModules(settings)
    modules.start()
    sandbox = Sandbox(settings)
    watching = asyncio.create_task(sandbox.watch())
    checks = Checks(settings)
    usage = account_sync.usage_counter
    identity = ServerIdentity.of(settings)
    url = settings.advertised_url or _url(settings, listener, named=True)
    membership = Membership(engine, store, identity, url, lambda: stop.requested)
    job_service = JobService(settings, engine, store, modules, sandbox, checks, usage, membership)
    job_service.start()
    membership.start()
    json = JsonPool(int(settings.max_json_bytes))
    implementations = ImplementationService(settings, engine, store, modules, sandbox, checks)
    problems = ProblemService(settings, store, checks, sandbox)
    try:
        app = create_app(
            settings,
            engine,
            account_sync,
            job_service,
            json,
            implementations,
            problems,
            checks,
            sandbox,
            membership,
            lambda: server.should_exit,
        )
        # The objects made so far stay until the end. Without freeze, each full pass of the garbage
        # collector would scan them, and stop the event loop for some 60 ms.
        gc.collect()
        gc.freeze()
        server = HttpServer(
            uvicorn.Config(
                app,
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
                timeout_keep_alive=KEEP_ALIVE_S,
            ),
            unix_listener,
            drain_s=settings.drain_timeout_s,
            unread_s=settings.body_timeout_s,
        )
        stop.server = server
        devices = ", ".join(lane.device for lane in engine.status() if lane.state == "ready")
        where = _url(settings, listener) + (f" and unix://{settings.uds}" if unix_listener else "")
        logs.announce(f"Warpcall listens on {where}, kernels run on {devices}")
        if sys.stdout is not None and sys.stdout.isatty():
            for line in _next_steps(_url(settings, listener), account_sync.authenticator.needs_key):
                logs.announce(line)
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
        implementations.close()
        problems.close()
        await job_service.stop()
        await membership.stop()
        await modules.stop()
        await engine.stop()
        json.close()
        await account_sync.stop()
        log.info("the server has stopped")


class _Stop:
    """Handles SIGTERM and SIGINT, from before the lanes start until the process ends.

    Args:
        end_s: seconds after the first signal at which the kernel ends the process in any case.
    """

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self.server: HttpServer | None = None
        self._requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def or_done(self, start: Coroutine[Any, Any, None]) -> bool:
        """Run `start`, and cancel it if a signal comes first. Return whether it has ended."""
        starting = asyncio.create_task(start)
        requested = asyncio.create_task(self._requested.wait())
        await asyncio.wait((starting, requested), return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return False
        starting.result()
        return True

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._requested.is_set()

    def request_in(self, delay_s: float) -> None:
        """Stop after a time as on SIGTERM."""
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._request, "its time is over")

    def _on_signal(self, number: signal.Signals) -> None:
        self._request(signal.Signals(number).name)

    def _request(self, why: str) -> None:
        log.info("%s: the server stops", why)
        if not self._requested.is_set():
            # If a thread or the event loop is blocked then, no Python code can end the process.
            signal.alarm(math.ceil(self._end_s))
        self._requested.set()
        if self.server is not None:
            self.server.force_exit = self.server.should_exit
            self.server.should_exit = True


def _open_store(settings: Settings, marker: KeysMarker) -> tuple[Store, Snapshot]:
    """Open the database, migrate it to the current schema, and read its keys.

    If there is no database yet and none can be created, there are no keys: calls work without a
    database, and the log says so. A database that exists and cannot be read may hold keys, so the
    server does not start. Nor does it if `marker` says that there were keys and there are none.
    """
    url = settings.database_url
    try:
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
    except StoreError as error:
        raise ServerError(error.reason) from None
    if not store.exists:
        marker.check(Snapshot(), store.label)  # before `migrate` creates an empty database
    try:
        store.migrate()
        with store.read() as session:
            keys = users.snapshot(session, Snapshot())
    except StoreError as error:
        if store.exists:
            raise ServerError(error.reason) from None
        log.error("%s; until it can, there are no keys, and usage is not saved", error.reason)
        return store, Snapshot()
    marker.check(keys, store.label)
    marker.keep(keys)
    return store, keys


def _check_access(settings: Settings, keys: Snapshot) -> None:
    """Refuse to start without keys where they are needed, or with an unusable certificate."""
    if settings.require_keys and not keys.keys:
        raise ServerError(
            "WARPCALL_REQUIRE_KEYS is set and the database has no API key; make one "
            "(warpcall-server users add NAME, then keys create NAME), or restore the database "
            "from its backup"
        )
    if not (settings.is_local or settings.insecure or keys.keys):
        raise ServerError(
            f"{settings.host} can be reached by others and no API keys exist to tell them apart; "
            "make one (warpcall-server users add NAME, then keys create NAME), serve 127.0.0.1, "
            "or set WARPCALL_INSECURE=true (--insecure) where the network is trusted"
        )
    if settings.tls_cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                settings.tls_cert, settings.tls_key
            )
        except (OSError, ssl.SSLError) as error:
            files = f"{settings.tls_cert} and {settings.tls_key or 'no other file'}"
            raise ServerError(
                f"WARPCALL_TLS_CERT and WARPCALL_TLS_KEY: {files}: {error.strerror or error}"
            ) from None


def _next_steps(url: str, needs_key: bool) -> list[str]:
    """What a person who started the server at a terminal can do now."""
    command = "login" if needs_key else "ops"
    return [
        f"  in a browser:  {url}/ and {url}/docs",
        f"  in a shell:    warpcall {command} --url {url}",
        "  Ctrl-C stops the server",
    ]


def _url(settings: Settings, listener: socket.socket, *, named: bool = False) -> str:
    """The address that the server listens on.

    Args:
        named: whether to have the machine's name in place of an address that stands for all.
    """
    host, port = listener.getsockname()[:2]
    if named and ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
