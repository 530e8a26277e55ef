"""Servers that prolong an exchange for as long as the client allows."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.client.scripted import Visit

OUTLASTED_S = 30.0  # a client whose timeout is TIMEOUT_S and that is still there then has none
TIMEOUT_S = 0.5
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Endless:
    """A script that sends `first`, then `again` without end.

    Attributes:
        outlasted: set when the client stayed for OUTLASTED_S: it kept no deadline.
    """

    first: bytes
    again: bytes
    pause_s: float = 0.05
    outlasted: threading.Event = field(default_factory=threading.Event)

    def __call__(self, visit: Visit) -> None:
        visit.body()
        self.send_to(visit.sock)

    def send_to(self, sock: socket.socket) -> None:
        until_it_leaves(self._sending(sock), self.pause_s, self.outlasted)

    def _sending(self, sock: socket.socket) -> Callable[[], None]:
        sock.settimeout(OUTLASTED_S)
        sock.sendall(self.first)
        return lambda: sock.sendall(self.again)


@dataclass
class SlowReader:
    """A script that reads a large body so slowly that it would take hours."""

    outlasted: threading.Event = field(default_factory=threading.Event)

    def __call__(self, visit: Visit) -> None:
        until_it_leaves(lambda: self._read(visit.sock), 0.05, self.outlasted)

    def _read(self, sock: socket.socket) -> None:
        sock.settimeout(OUTLASTED_S)
        sock.recv(1 << 12)


def until_it_leaves(act: Callable[[], None], pause_s: float, outlasted: threading.Event) -> None:
    """Repeat an action until the client closes the connection, or has stayed for too long."""
    end = time.monotonic() + OUTLASTED_S
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            act()
            time.sleep(pause_s)
        outlasted.set()


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that serves each connection in a thread. An OSError ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def served(sock: socket.socket) -> None:
            try:
                with sock:
                    serve(sock)
            except OSError:
                return

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=served, args=(sock,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
