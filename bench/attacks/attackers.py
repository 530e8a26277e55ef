"""Clients that attack a server, for `bench/attacks/hostile.py`: run as a process of its own until
SIGTERM.

    python -m bench.attacks.attackers PORT CONNECTIONS KIND...    (the attackers' API key is in WARPCALL_API_KEY)

Each connection repeats one behaviour. A connection that the server closes is opened again, at most
twice a second. One line on stdout says that all connections were opened once; a second one, at the
end, is a JSON object that counts what came back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from bench.attacks.hostile_requests import requests
from warpcall.wire import MAX_HEADER_BYTES

PAUSE_S = 0.5  # before a closed connection is opened again
READ_BYTES = 64 << 10
CALL = "/v1/kernels/permute?dims=0"
PIPELINED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
UPLOAD_BYTES = 8 << 20  # of a slow call
UPLOAD_PIECE_BYTES = 16 << 10  # of it, each UPLOAD_PAUSE_S
UPLOAD_PAUSE_S = 1.0
ANSWER_BYTES = 4 << 20  # of an answer that is read slowly, or not at all
MAX_JSON_BYTES = 512 << 10  # a server takes no more

Attack = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One connection of an attacker.

    Args:
        sock: connected and non-blocking, with a small receive buffer.
        number: which of the attacker's connections it is.
        counts: what came back, by attack and status.
    """

    def __init__(self, sock: socket.socket, number: int, key: str, counts: Counter[str]) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.number = number
        self.key = key
        self.counts = counts

    async def send(self, data: bytes) -> None:
        """Send all of `data`, however long the server takes to read it."""
        await self._loop.sock_sendall(self._sock, data)

    async def read(self) -> bytes:
        """What has come; empty when the server has closed the connection."""
        return await self._loop.sock_recv(self._sock, READ_BYTES)

    async def answers(self, quiet_s: float) -> bytes:
        """What comes until the server closes, or sends nothing for `quiet_s`."""
        came = bytearray()
        with contextlib.suppress(TimeoutError):
            while data := await asyncio.wait_for(self.read(), quiet_s):
                came += data
        return bytes(came)

    def head(self, path: str, nbytes: int, media: str, *more: str, method: str = "POST") -> bytes:
        """The head of a request with the attacker's key."""
        fields = (
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {self.key}",
            f"Content-Type: {media}",
            f"Content-Length: {nbytes}",
            *more,
        )
        return "\r\n".join(fields).encode() + b"\r\n\r\n"

    def call(self, nbytes: int) -> bytes:
        """The head of a call with a tensor of `nbytes` bytes, and the header of its body."""
        entry = {"x": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}
        text = json.dumps(entry).encode()
        header = len(text).to_bytes(8, "little") + text
        return self.head(CALL, len(header) + nbytes, "application/vnd.safetensors") + header


async def pipeline(connection: Connection) -> None:
    """Send requests without a key, one after the other, and read no answer."""
    while True:
        await connection.send(PIPELINED)


async def unread(connection: Connection) -> None:
    """Ask for large answers, of calls and of other routes, and read none of them."""
    if connection.number % 2:
        key = f"Authorization: Bearer {connection.key}\r\n".encode()
        await connection.send(
            (b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" + key + b"\r\n") * 50
        )
    else:
        await connection.send(connection.call(ANSWER_BYTES) + bytes(ANSWER_BYTES))
    await asyncio.sleep(3600)


async def slow_upload(connection: Connection) -> None:
    """Send a large call slowly, but never stand still."""
    await connection.send(connection.call(UPLOAD_BYTES))
    for _ in range(UPLOAD_BYTES // UPLOAD_PIECE_BYTES):
        await connection.send(bytes(UPLOAD_PIECE_BYTES))
        await asyncio.sleep(UPLOAD_PAUSE_S)


async def slow_download(connection: Connection) -> None:
    """Read a large answer slowly, but never stand still."""
    await connection.send(connection.call(ANSWER_BYTES) + bytes(ANSWER_BYTES))
    while await connection.read():
        await asyncio.sleep(UPLOAD_PAUSE_S)


async def bombs(connection: Connection) -> None:
    """Send small requests that cost much to read."""
    await connection.send(random.choice(_bombs(connection.key)))
    came = await connection.answers(30.0)
    connection.counts[f"bombs {came[9:12].decode('latin-1') or 'closed'}"] += 1


async def upgrade(connection: Connection) -> None:
    """Send a body that is a request of its own, and ask the server to switch protocols before it."""
    inner = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    more = ("Connection: keep-alive, Upgrade", f"Upgrade: {UPGRADES[connection.number % 3]}")
    method, path = ("POST", CALL) if connection.number % 2 else ("GET", "/v1/kernels")
    head = connection.head(path, len(inner), "application/json", *more, method=method)
    await connection.send(head)
    await asyncio.sleep(0.05)  # a body in a later segment is what the parser saw as a request
    await connection.send(inner)
    came = await connection.answers(1.0)
    connection.counts[SMUGGLED] += max(0, came.count(b"HTTP/1.1 ") - 1)
    connection.counts["upgrade"] += 1


SMUGGLED = "answers to a request in a body"
UPGRADES = ("websocket", "h2c", "anything")
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (pipeline, unread, slow_upload, slow_download, bombs, upgrade)
}


@functools.cache
def _bombs(key: str) -> Sequence[bytes]:
    """Requests that cost much to read, with a key; the server closes the connection after each."""
    made = requests(MAX_JSON_BYTES, MAX_HEADER_BYTES)
    return [one.encode(f"Authorization: Bearer {key}", "Connection: close") for one in made]


async def attack(port: int, count: int, kinds: Sequence[str], key: str) -> None:
    """Attack with `count` connections, of each kind in turn, until SIGTERM."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * count + 64)), hard))
    loop = asyncio.get_running_loop()
    counts: Counter[str] = Counter()
    opened = asyncio.Semaphore(0)

    async def client(number: int) -> None:
        kind, first = kinds[number % len(kinds)], True
        while True:
            with contextlib.suppress(OSError), _socket() as sock:
                await loop.sock_connect(sock, ("127.0.0.1", port))
                if first:
                    opened.release()
                    first = False
                connection = Connection(sock, number // len(kinds), key, counts)
                await ATTACKS[kind](connection)
            await asyncio.sleep(PAUSE_S)

    if bombs.__name__ in kinds:
        _bombs(key)  # it takes seconds
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    clients = [asyncio.create_task(client(number)) for number in range(count)]
    for _ in clients:
        await opened.acquire()
    sys.stdout.write("all connections were opened\n")
    sys.stdout.flush()
    await ended.wait()
    sys.stdout.write(json.dumps(counts) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its sockets are closed by the system, whatever is unsent in them


def _socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return sock


if __name__ == "__main__":
    asyncio.run(
        attack(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:], os.environ["WARPCALL_API_KEY"])
    )
