"""A receiver of the calls of monitors, which answers as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LONG_S = 60.0


@dataclass(frozen=True)
class Call:
    """A request that came."""

    headers: Message
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Receiver:
    """Takes calls on a free port, or on the port of one that was closed.

    Attributes:
        calls: what came so far.
        status, headers: of the answers.
        slow: whether answers take longer than any sender waits.
    """

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.status = 204
        self.headers: Mapping[str, str] = {}
        self.slow = False
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                receiver.calls.append(Call(self.headers, self.rfile.read(length)))
                deadline = time.monotonic() + LONG_S
                while receiver.slow and time.monotonic() < deadline:
                    if receiver._closing.wait(0.05):
                        return
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self.port}/hook"
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
