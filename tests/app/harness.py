"""The application in this process: real lanes whose worker is a thread, and no socket.

A test sends requests with an ordinary `httpx.Client`. What needs a port, a process of its own or a
log file is tested with a real server, by the tests outside of this folder.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
HOST = "localhost"  # a server without keys answers to no other name
URL = f"http://{HOST}"
SMALL: Mapping[str, Any] = {"arena_bytes": "64MiB", "devices": "cpu"}

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class ThreadProcess:
    """Implements `processes.spawn.Process`: the code of a worker process, run by a thread."""

    pid = 0

    def __init__(
        self,
        module: str,
        name: str,
        arguments: Mapping[str, Any],
        sockets: Mapping[str, socket.SocketKind],
        *,
        fds: Mapping[str, int],
        environment: Mapping[str, str],
    ) -> None:
        del module, environment
        ours: dict[str, socket.socket] = {}
        theirs: dict[str, int] = {}
        for socket_name, kind in sockets.items():
            ours[socket_name], other = socket.socketpair(socket.AF_UNIX, kind)
            theirs[f"{socket_name}_fd"] = other.detach()
        self.sockets: Mapping[str, socket.socket] = ours
        options = {key.replace("-", "_"): value for key, value in arguments.items()}
        args = argparse.Namespace(**{**options, "threads": 1}, **theirs)
        with os.fdopen(os.dup(fds["arena"])) as file:
            arena = mmap.mmap(file.fileno(), args.arena_nbytes)
        self._thread = threading.Thread(
            target=self._run, args=(args, arena), name=f"worker of {name}", daemon=True
        )
        self._thread.start()

    def _run(self, args: argparse.Namespace, arena: mmap.mmap) -> None:
        from warpcall_service.worker.main import run_worker

        run_worker(args, arena)

    def poll(self) -> int | None:
        """The exit status; None while the thread runs."""
        return None if self._thread.is_alive() else 0

    async def wait(self) -> None:
        """Wait until the thread has ended."""
        while self._thread.is_alive():
            await asyncio.sleep(0.002)

    def kill(self) -> None:
        """Let the thread find that its sockets are closed."""
        for sock in self.sockets.values():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets.values():
            sock.close()


class LoopTransport(httpx.BaseTransport):
    """Sends the requests of a synchronous client to an ASGI application in the loop of a thread.

    Responses are streamed: a test can read the first part of one that has no end, and leave.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, app: Asgi, client: str) -> None:
        self._loop = loop
        self._app = app
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return its response when its head is there."""
        answer = _Answer(self._loop, self._app, self._scope(request), request.read())
        status, headers = answer.head()
        return httpx.Response(status, headers=headers, stream=answer)

    def _scope(self, request: httpx.Request) -> dict[str, Any]:
        url = request.url
        target = request.extensions.get("target", url.raw_path)  # as httpx sends it over a socket
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (url.host, url.port),
            "client": (self._client, 123),
            "root_path": "",
        }


class _Answer(httpx.SyncByteStream):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, app: Asgi, scope: dict[str, Any], body: bytes
    ) -> None:
        self._body: bytes | None = body
        self._is_head = scope["method"] == "HEAD"  # HTTP servers drop the body of the response
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._done = asyncio.run_coroutine_threadsafe(self._run(app, scope), loop)

    async def _run(self, app: Asgi, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._messages.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:  # the client waits for the rest of the response
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        if "body" in message:  # a copy: the memory belongs to other calls later
            message = {**message, "body": b"" if self._is_head else bytes(message["body"])}
        self._messages.put(message)

    def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers."""
        message = self._messages.get(timeout=ANSWER_TIMEOUT_S)
        if message is None:
            self._done.result(ANSWER_TIMEOUT_S)
            raise AssertionError("the application has not answered")
        return message["status"], message["headers"]

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._messages.get(timeout=ANSWER_TIMEOUT_S)) is not None:
            yield message.get("body", b"")
        self._done.result(ANSWER_TIMEOUT_S)  # raises what the application has raised

    def close(self) -> None:
        """Leave, if the response is not complete."""
        self._done.cancel()


class App:
    """The running application.

    Attributes:
        loop: of the thread in which it runs.
        engine: its lanes.
        store: its database.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.engine: Any
        self.store: Any
        self.asgi: Asgi

    def client(
        self, key: str | None = None, address: str = "127.0.0.1", scheme: str = "http"
    ) -> httpx.Client:
        """A client of the application.

        Args:
            key: an API key.
            address: from which the requests seem to come.
            scheme: "https" for a client that seems to come over TLS.
        """
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        transport = LoopTransport(self.loop, self.asgi, address)
        return httpx.Client(transport=transport, base_url=f"{scheme}://{HOST}", headers=headers)


def in_python(variables: Mapping[str, str]) -> dict[str, Any]:
    """Settings for `running_app` from the environment variables of a server."""
    named = {name.removeprefix("WARPCALL_").lower(): text for name, text in variables.items()}
    return {name: Path(text) if name == "data_dir" else text for name, text in named.items()}


@contextmanager
def running_app(*, runs_jobs: bool = True, **settings: Any) -> Iterator[App]:
    """Run an application with these settings in a thread of its own.

    The database is empty, unless the settings name one.

    Args:
        runs_jobs: if not, jobs are accepted and wait, as where another server has the data folder.
    """
    from warpcall_service.nodes.server_identity import ServerIdentity

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if not runs_jobs:
            holder = ServerIdentity(Path(settings.get("data_dir", folder)))
            holder.acquire()
            stack.callback(holder.release)
        app, started, stop = App(), threading.Event(), asyncio.Event()
        failed: list[BaseException] = []

        async def run() -> None:
            from warpcall_service.extension import load_settings
            from warpcall_service.lanes.engine import LocalEngine
            from warpcall_service.startup.assembly import application
            from warpcall_service.startup.serving import load_extension, open_store

            loaded = load_settings(**{**SMALL, "data_dir": Path(folder), **settings})
            app.loop = asyncio.get_running_loop()
            app.engine = LocalEngine(loaded, ThreadProcess)
            await app.engine.start()
            extension = load_extension(loaded)
            app.store, keys = open_store(loaded)
            identity = ServerIdentity.of(loaded, "")
            parts = (loaded, app.engine, app.store, keys, identity, URL, stop.is_set, extension)
            async with application(*parts) as running:
                app.asgi = running.gateway
                started.set()
                await stop.wait()

        def main() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:  # noqa: BLE001  # the test's thread raises it
                failed.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=main, name="application", daemon=True)
        thread.start()
        try:
            assert started.wait(START_TIMEOUT_S), "the application has not started"
            if failed:
                raise failed[0]
            yield app
        finally:
            if not failed:
                app.loop.call_soon_threadsafe(stop.set)
            thread.join(START_TIMEOUT_S)
        assert not thread.is_alive()
        if failed:
            raise failed[0]
