"""Answers probes while the server starts, and keeps all other connections until it serves.

The modules of the HTTP server take a second to import, and a worker process several seconds to
start. Meanwhile a thread accepts connections. It looks at the first bytes of each without taking
them from the socket. A request for /healthz or /readyz is answered. Every other connection is kept as
it is, and the server serves it as soon as it can: no byte is lost, and no client is refused.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

MAX_KEPT = 256  # connections; more of them wait in the queue of the listening socket
LOOK_BYTES = 16 << 10  # of a connection; the head of a probe is shorter
RETRY_AFTER_S = 1
HEADERS = "content-type: application/json\r\nconnection: close\r\n"
END_OF_HEAD = b"\r\n\r\n"


class StartResponder:
    """A thread that accepts the connections of listening sockets until `stop`.

    With TLS it cannot read requests, so probes wait for the server as all others do.

    Args:
        reasons: returns why the server is not ready; it is called in the thread.
    """

    def __init__(
        self, listeners: Iterable[socket.socket], reasons: Callable[[], list[str]]
    ) -> None:
        self._listeners = list(listeners)
        self._reasons = reasons
        self._kept: dict[socket.socket, None] = {}  # in the order in which they came
        self._selector = selectors.DefaultSelector()
        self._stopping, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="start-responder", daemon=True)

    def start(self) -> None:
        """Begin to accept connections."""
        self._selector.register(self._wake, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
        self._listen()
        self._thread.start()

    def stop(self) -> list[socket.socket]:
        """End the thread, and return the connections that it has kept. A second call returns none."""
        self._stopping.close()
        if self._thread.ident is not None:
            self._thread.join()
        kept, self._kept = list(self._kept), {}
        return kept

    def _run(self) -> None:
        with self._selector, self._wake:
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        return
                    key.data(key.fileobj)

    def _listen(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has left, or there is no descriptor for it now
            return
        connection.setblocking(False)
        self._kept[connection] = None
        self._selector.register(connection, selectors.EVENT_READ, self._look)
        if len(self._kept) == MAX_KEPT:
            for each in self._listeners:
                self._selector.unregister(each)

    def _look(self, connection: socket.socket) -> None:
        """Answer a probe. What is no probe is not looked at again."""
        self._selector.unregister(connection)
        try:
            data = connection.recv(LOOK_BYTES, socket.MSG_PEEK)
            answer = self._answer(data)
            if data and answer is None:
                return
            if answer is not None:
                connection.recv(len(data))
                connection.sendall(answer)
        except OSError:
            pass  # the client has left
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if len(self._kept) == MAX_KEPT:
            self._listen()
        del self._kept[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _answer(self, data: bytes) -> bytes | None:
        """The response to a whole request that is a probe, or None."""
        if not data.endswith(END_OF_HEAD):
            return None
        method, _, rest = data.partition(b" ")
        path = rest.partition(b" ")[0]
        if method not in (b"GET", b"HEAD") or path not in (b"/healthz", b"/readyz"):
            return None
        if path == b"/healthz":
            head = "HTTP/1.1 200 OK\r\n"
            payload: dict[str, Any] = {"status": "ok"}
        else:
            head = f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER_S}\r\n"
            payload = {
                "status": "unready",
                "reasons": self._reasons(),
                "uploads": "unavailable: the server is starting",
                "lanes": [],
            }
        body = json.dumps(payload).encode()
        head += f"{HEADERS}content-length: {len(body)}\r\n\r\n"
        return head.encode() + (body if method == b"GET" else b"")
