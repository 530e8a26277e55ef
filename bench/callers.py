"""Who calls: the bare loop, and the service through a raw socket, the SDK both ways, and curl."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.loop import WINDOW_BYTES, LoopClient, receive_all, send_all
from warpcall import AsyncClient, Client, wire
from warpcall.sockets import prepare, slice_nbytes

Tensor = npt.NDArray[np.float32]

OP = "permute"
DIMS = (0, 1)
CALL_TIMEOUT_S = 120.0
CURL_CALLS = 16  # at most, in a sample: each starts a process
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STAGE = re.compile(rb"(\w+);dur=([\d.]+)")


class Caller(Protocol):
    """A way to send a tensor and get it back, by several clients at once."""

    def run(self, calls: int) -> float:
        """Seconds that `calls` calls by each client took."""
        ...

    def check(self) -> None:
        """One call; raises ValueError unless the tensor came back as it was."""
        ...

    def close(self) -> None: ...


class Connection(Protocol):
    """One client's connection; `received` holds the last answer."""

    received: memoryview

    def call(self) -> None: ...

    def close(self) -> None: ...


class RawClient:
    """HTTP by hand on one kept-alive connection, sent in the slices that suit the service best.

    Args:
        address: a port of this machine, or the path of a Unix socket.
        oip: whether the calls are inference requests of the Open Inference Protocol, as tritonclient
            writes them.

    Attributes:
        timing: milliseconds by stage of the last call, as the server says.
    """

    def __init__(
        self, address: int | Path, tensor: Tensor, key: str = "", *, oip: bool = False
    ) -> None:
        self._sock = _connect(address)
        self._slice_nbytes = slice_nbytes(self._sock)
        head, fields = _oip_head(tensor) if oip else _native_head(tensor)
        length = len(head) + tensor.nbytes
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"{fields}Content-Length: {length}\r\n{authorization}\r\n".encode() + head
        payload = tensor.data.cast("B")
        small = len(payload) < WINDOW_BYTES
        self._parts = [memoryview(head + payload)] if small else [memoryview(head), payload]
        self._head = memoryview(bytearray(WINDOW_BYTES))
        self._body = memoryview(bytearray(length + 4096))
        self._nbytes = tensor.nbytes
        self.received = self._body[:0]
        self._answer_head, self._answer_body_nbytes = b"", 0

    @property
    def parts(self) -> list[memoryview]:
        """What is sent: the whole request."""
        return self._parts

    @property
    def answer_nbytes(self) -> int:
        """Bytes of the last answer, with its head."""
        return len(self._answer_head) + 4 + self._answer_body_nbytes

    @property
    def timing(self) -> dict[str, float]:
        stages = _STAGE.findall(self._answer_head)
        return {name.decode(): float(duration) for name, duration in stages}

    def call(self) -> None:
        for part in self._parts:
            send_all(self._sock, part, self._slice_nbytes)
        at = 0
        while (end := bytes(self._head[:at]).find(b"\r\n\r\n")) < 0:
            at += _some(self._sock.recv_into(self._head[at:]))
        early, nbytes = self._begin_body(at, end)
        receive_all(self._sock, self._body[early:nbytes])
        self.received = self._body[nbytes - self._nbytes : nbytes]

    async def call_async(self) -> None:
        """As `call`, in the running loop."""
        loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        for part in self._parts:
            await loop.sock_sendall(self._sock, part)
        at = 0
        while (end := bytes(self._head[:at]).find(b"\r\n\r\n")) < 0:
            at += _some(await loop.sock_recv_into(self._sock, self._head[at:]))
        early, nbytes = self._begin_body(at, end)
        while early < nbytes:
            early += _some(await loop.sock_recv_into(self._sock, self._body[early:nbytes]))
        self.received = self._body[nbytes - self._nbytes : nbytes]

    def _begin_body(self, at: int, end: int) -> tuple[int, int]:
        """The bytes of the body that came with the head, copied to their place, and all of them."""
        head = bytes(self._head[:end])
        length = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or length is None:
            raise ConnectionError(f"the server answered {bytes(self._head[:at])!r}")
        self._answer_head, self._answer_body_nbytes = head, int(length[1])
        early = at - (end + 4)
        self._body[:early] = self._head[end + 4 : at]
        return early, int(length[1])

    def close(self) -> None:
        self._sock.close()


class AsyncRaw:
    """`RawClient` in asyncio: each task has a connection of its own."""

    def __init__(self, address: int | Path, clients: int, tensor: Tensor) -> None:
        self._connections = [RawClient(address, tensor) for _ in range(clients)]
        self._runner = asyncio.Runner()
        self._tensor = tensor

    def run(self, calls: int) -> float:
        return self._runner.run(self._run(calls))

    def check(self) -> None:
        self._runner.run(self._run(1))
        for connection in self._connections:
            refuse_other(np.frombuffer(connection.received, np.float32), self._tensor)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._runner.close()

    async def _run(self, calls: int) -> float:
        async def client(connection: RawClient) -> None:
            for _ in range(calls):
                await connection.call_async()

        begin = time.perf_counter()
        await asyncio.gather(*map(client, self._connections))
        return time.perf_counter() - begin


class Sockets:
    """Connections that are each used by a thread of their own."""

    def __init__(self, connect: Callable[[], Connection], clients: int, tensor: Tensor) -> None:
        self._connections = [connect() for _ in range(clients)]
        self._tensor = tensor

    def run(self, calls: int) -> float:
        return in_threads([connection.call for connection in self._connections], calls)

    def check(self) -> None:
        for connection in self._connections:
            connection.call()
            refuse_other(np.frombuffer(connection.received, np.float32), self._tensor)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def loop(port: int, clients: int, tensor: Tensor) -> Caller:
    """The yardstick."""
    return Sockets(lambda: LoopClient(port, tensor.data.cast("B")), clients, tensor)


def raw(address: int | Path, clients: int, tensor: Tensor) -> Caller:
    """The service, called by hand."""
    return Sockets(lambda: RawClient(address, tensor), clients, tensor)


class Sdk:
    """One blocking Client that threads share."""

    def __init__(self, address: int | Path, clients: int, tensor: Tensor) -> None:
        self._gpu = Client(_url(address), progress=False, timeout_s=CALL_TIMEOUT_S)
        self._clients = clients
        self._tensor = tensor

    def run(self, calls: int) -> float:
        return in_threads([self._call] * self._clients, calls)

    def check(self) -> None:
        refuse_other(self._call(), self._tensor)

    def close(self) -> None:
        self._gpu.close()

    def _call(self) -> Tensor:
        out: Tensor = self._gpu.permute(self._tensor, dims=DIMS)
        return out


class AsyncSdk:
    """One AsyncClient that tasks share."""

    def __init__(self, address: int | Path, clients: int, tensor: Tensor) -> None:
        self._gpu = AsyncClient(_url(address), progress=False, timeout_s=CALL_TIMEOUT_S)
        self._runner = asyncio.Runner()
        self._clients = clients
        self._tensor = tensor

    def run(self, calls: int) -> float:
        return self._runner.run(self._run(calls))

    def check(self) -> None:
        refuse_other(self._runner.run(self._gpu.permute(self._tensor, dims=DIMS)), self._tensor)

    def close(self) -> None:
        self._runner.run(self._gpu.close())
        self._runner.close()

    async def _run(self, calls: int) -> float:
        async def client() -> None:
            for _ in range(calls):
                await self._gpu.permute(self._tensor, dims=DIMS)

        begin = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(self._clients)))
        return time.perf_counter() - begin


class Curl:
    """A curl process for each call, its start included; the answer is read and dropped."""

    def __init__(self, port: int, clients: int, tensor: Tensor, folder: Path) -> None:
        self._file = folder / f"{tensor.nbytes}.safetensors"
        with self._file.open("wb") as file:
            file.write(safetensors_head(tensor))
            file.write(tensor.data.cast("B"))
        dims = ",".join(map(str, DIMS))
        self._command = [
            *("curl", "--silent", "--show-error", "--fail", "--request", "POST"),
            *("--header", f"Content-Type: {wire.MEDIA_TYPE}", "--header", "Expect:"),
            *("--upload-file", str(self._file)),
            f"http://127.0.0.1:{port}/v1/kernels/{OP}?dims={dims}",
        ]
        self._clients = clients
        self._tensor = tensor

    def run(self, calls: int) -> float:
        fewer = min(calls, max(1, CURL_CALLS // self._clients))
        return in_threads([self._call] * self._clients, fewer) * calls / fewer

    def check(self) -> None:
        body = subprocess.run(self._command, check=True, capture_output=True).stdout
        skipped = len(body) - self._tensor.nbytes
        refuse_other(np.frombuffer(body, np.float32, offset=skipped), self._tensor)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)

    def _call(self) -> None:
        subprocess.run(self._command, check=True, stdout=subprocess.DEVNULL)


def _some(nbytes: int) -> int:
    if not nbytes:
        raise ConnectionError("the server left")
    return nbytes


def _connect(address: int | Path) -> socket.socket:
    if isinstance(address, int):
        sock = socket.create_connection(("127.0.0.1", address), timeout=CALL_TIMEOUT_S)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(CALL_TIMEOUT_S)
        sock.connect(str(address))
    prepare(sock)
    return sock


def _url(address: int | Path) -> str:
    return f"http://127.0.0.1:{address}" if isinstance(address, int) else f"unix://{address}"


def in_threads(work: list[Callable[[], object]], calls: int) -> float:
    """Seconds until each has been called so many times; a single one needs no thread."""

    def repeat(one: Callable[[], object]) -> None:
        for _ in range(calls):
            one()

    if len(work) == 1:
        begin = time.perf_counter()
        repeat(work[0])
        return time.perf_counter() - begin
    with ThreadPoolExecutor(len(work)) as pool:
        begin = time.perf_counter()
        for done in [pool.submit(repeat, one) for one in work]:
            done.result()
        return time.perf_counter() - begin


def _native_head(tensor: Tensor) -> tuple[bytes, str]:
    """What comes before the tensor's bytes in a body, and the request line with its first headers."""
    dims = ",".join(map(str, DIMS))
    line = f"POST /v1/kernels/{OP}?dims={dims} HTTP/1.1\r\nHost: localhost\r\n"
    return safetensors_head(tensor), f"{line}Content-Type: {wire.MEDIA_TYPE}\r\n"


def _oip_head(tensor: Tensor) -> tuple[bytes, str]:
    """As `_native_head`, for an inference request."""
    size = {"binary_data_size": tensor.nbytes}
    given = {"name": "x", "shape": tensor.shape, "datatype": "FP32", "parameters": size}
    parameters = {"binary_data_output": True, "dims": ",".join(map(str, DIMS))}
    text = json.dumps({"inputs": [given], "parameters": parameters}, separators=(",", ":")).encode()
    line = f"POST /v2/models/{OP}/infer HTTP/1.1\r\nHost: localhost\r\n"
    return text, f"{line}Inference-Header-Content-Length: {len(text)}\r\n"


def safetensors_head(tensor: Tensor) -> bytes:
    """All of the body that comes before the tensor's bytes."""
    info = wire.TensorInfo("x", "F32", tensor.shape)
    return wire.encode_header(wire.lay_out([info]))


def refuse_other(got: Tensor, sent: Tensor) -> None:
    """Raise ValueError unless every byte came back."""
    if not np.array_equal(got.reshape(-1), sent.reshape(-1)):
        raise ValueError("what came back is not what was sent")
