"""What a machine that is busy with other work adds to every answer, measured beside a server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Processes that run one after the other until a call is answered (the server, its worker, the
# server, the client), where an echo has two.
HOPS = 4
PROGRAM = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    with listener.accept()[0] as sock:
        while data := sock.recv(65536):
            sock.sendall(data)
"""


class Echo:
    """A process that only sends back what it gets, and so takes what the machine takes."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), 60)

    def round_trip_s(self, nbytes: int = 64) -> float:
        """Seconds until `nbytes` have come back."""
        began = time.perf_counter()
        self._sock.sendall(bytes(nbytes))
        left = nbytes
        while left:
            left -= len(self._sock.recv(left))
        return time.perf_counter() - began

    def close(self) -> None:
        """Let the process end."""
        self._sock.close()


@contextmanager
def echo() -> Iterator[Echo]:
    """An `Echo` with a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        made = Echo(int(process.stdout.readline()))
        try:
            yield made
        finally:
            made.close()
