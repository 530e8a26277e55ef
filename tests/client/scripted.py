"""A real HTTP server on loopback that answers each request as a test scripts it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import safetensors.numpy

PIECE = 64 << 10

X = np.arange(6, dtype=np.float32).reshape(2, 3)
OUT = safetensors.numpy.save({"out": X.T.copy()})
LARGE = np.zeros(48 << 20, np.uint8)  # more than the kernel buffers of a connection hold


@dataclass
class Visit:
    """One request, read up to the end of its head, and the methods to answer it."""

    sock: socket.socket
    target: str
    headers: dict[str, str]
    early: bytes  # of the body, read together with the head
    method: str = "GET"

    def body(self) -> bytes:
        """The request's body, read to its end."""
        data = bytearray(self.early)
        while len(data) < int(self.headers.get("content-length", 0)):
            piece = self.sock.recv(PIECE)
            if not piece:
                raise ConnectionResetError
            data += piece
        self.early = bytes(data)
        return self.early

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        fields = {"Content-Length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.sock.sendall(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body)


Script = Callable[[Visit], None]


class ScriptedServer:
    """Answers the n-th request with the n-th script, and all further ones with the last.

    A script that raises ends its connection. With `tls`, it speaks HTTPS.
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.targets: list[str] = []
        self.connections = 0
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(sock)
                self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            sock = stack.enter_context(plain)
            if self._tls is not None:
                plain.getpeername()  # fails if the client has left: wrap_socket would leak then
                sock = stack.enter_context(self._tls.wrap_socket(plain, server_side=True))
            for visit in _visits(sock):
                with self._lock:
                    script = self._scripts[min(len(self.targets), len(self._scripts) - 1)]
                    self.targets.append(visit.target)
                script(visit)


def _visits(sock: socket.socket) -> Iterator[Visit]:
    while True:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(PIECE)
            if not piece:
                return
            data += piece
        head, _, early = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        method, target, _ = first.split(" ")
        yield Visit(sock, target, {k.lower(): v for k, v in pairs}, early, method)


def permute(gpu: Any) -> Any:
    return gpu.run("permute", x=X, dims=(1, 0))


def permute_large(gpu: Any) -> Any:
    return gpu.run("permute", x=LARGE, dims=(0,))


def well(visit: Visit) -> None:
    visit.body()
    visit.answer(200, OUT, {"X-Warpcall-Device": "cpu", "Server-Timing": "queue;dur=0.5"})
