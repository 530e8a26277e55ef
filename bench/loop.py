"""The yardstick: a bare socket loop that moves the same bytes and does nothing else.

The server, a process of its own, receives a message of announced length into memory that it
already has, in windows of 256 KB, and sends it back in slices of 512 KB, which keeps both in the
cache. No service that copies a body in and an answer out can do less.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WINDOW_BYTES = 256 << 10
SLICE_BYTES = 512 << 10
PREFIX = struct.Struct("<Q")


def send_all(sock: socket.socket, data: memoryview, slice_nbytes: int = SLICE_BYTES) -> None:
    """Send in slices that stay in the cache."""
    for begin in range(0, len(data), slice_nbytes):
        sock.sendall(data[begin : begin + slice_nbytes])


def receive_all(sock: socket.socket, data: memoryview) -> None:
    """Fill `data`, a window at a time."""
    at = 0
    while at < len(data):
        got = sock.recv_into(data[at : at + WINDOW_BYTES])
        if not got:
            raise ConnectionError(f"the other side left after {at} of {len(data)} bytes")
        at += got


class LoopClient:
    """One connection to the loop."""

    def __init__(self, port: int, payload: memoryview) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        prefix = PREFIX.pack(len(payload))
        small = len(payload) < WINDOW_BYTES
        self._parts = [memoryview(prefix + payload)] if small else [memoryview(prefix), payload]
        self.received = memoryview(bytearray(len(payload)))

    def call(self) -> None:
        """Send the payload and receive it back."""
        for part in self._parts:
            send_all(self._sock, part)
        receive_all(self._sock, self.received)

    def close(self) -> None:
        self._sock.close()


@contextmanager
def running_loop(largest_bytes: int) -> Iterator[int]:
    """The port of a loop, in a process of its own, that takes messages up to `largest_bytes`."""
    command = [sys.executable, "-m", "bench.loop", str(largest_bytes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _echo(sock: socket.socket, largest_bytes: int) -> None:
    """One connection, until it ends."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(largest_bytes))
    prefix = memoryview(bytearray(PREFIX.size))
    while True:
        try:
            receive_all(sock, prefix)
        except ConnectionError:
            return
        message = memory[: PREFIX.unpack(prefix)[0]]
        receive_all(sock, message)
        send_all(sock, message)


def main() -> None:
    """Serve on a free port of this machine, printed as the only line, one thread a connection."""
    largest_bytes = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            sock = listener.accept()[0]
            threading.Thread(target=_echo, args=(sock, largest_bytes), daemon=True).start()


if __name__ == "__main__":
    main()
