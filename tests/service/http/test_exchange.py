"""The memory that a response is sent from: a transport refers to it only while it is allocated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable

import pytest
import uvicorn
import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from warpcall.errors import InvalidInput
from warpcall.sockets import slice_nbytes
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import JOIN_BYTES, SLICE_BYTES, ClientGone, Exchange
from warpcall_service.http.flow_control import UNSENT_BYTES

NBYTES = 64 << 20  # more than the sockets hold while nobody reads
PIECE_BYTES = 1 << 20
PATIENCE_S = 15.0
BUFFER_BYTES = 128 << 10  # of a socket's buffers; setting them stops the system from resizing them
READ_BYTES = 32 << 10
NAP_S = 0.0005  # pause of a slow reader between two reads


def read_from(
    app: ASGIApp,
    client: socket.socket,
    read: Callable[[], Awaitable[bytes]],
    request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
) -> bytes:
    """Send `app` a request over `client`, on a uvloop; return what `read` returns."""

    async def run_client() -> bytes:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        server = await loop.create_server(
            lambda: Connection(config, ServerState(), {}), "127.0.0.1", 0
        )
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await loop.sock_sendall(client, request)
        got = await read()
        server.close()
        return got

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, client:
        return runner.run(run_client())


def test_a_client_that_only_stops_sending_reads_nothing_of_a_later_call() -> None:
    memory = bytearray(b"a") * NBYTES
    client = socket.socket()
    memory_reused = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope["extensions"]["warpcall"][0].transport
        exchange = Exchange(scope, receive, send)

        def leave(nbytes: int) -> None:
            if transport.get_write_buffer_size():  # the socket takes no more
                client.shutdown(socket.SHUT_WR)

        headers = [(b"content-length", b"%d" % NBYTES)]
        with pytest.raises(ClientGone):
            await exchange.stream(headers, b"", memoryview(memory), leave)
        memory[:] = b"b" * NBYTES
        exchange.abandon()
        memory_reused.set()

    async def read() -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            await memory_reused.wait()
        got = bytearray()
        while piece := await asyncio.get_running_loop().sock_recv(client, PIECE_BYTES):
            got += piece
        return bytes(got)

    got = read_from(answer, client, read)

    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert 0 < body.count(b"a") == len(body) < NBYTES


def test_a_client_that_reads_slowly_reads_nothing_of_a_later_call() -> None:
    """uvicorn does not wait until the socket has taken so few bytes, and so `stream` has to.

    The socket takes nothing of `memory` at first, because the test fills it just before.
    """
    head = b"h" * JOIN_BYTES  # with more than this, `memory` is sent without a copy
    memory = bytearray(b"a") * (UNSENT_BYTES // 2)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    may_read = asyncio.Event()
    unsent: list[int] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_into_full(message: Message) -> None:
            if message.get("body") == memory:
                fill(sock.fileno())
            await send(message)

        transport = scope["extensions"]["warpcall"][0].transport
        exchange = Exchange(scope, receive, send_into_full)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

        def note(sent: int) -> None:
            unsent.append(transport.get_write_buffer_size())
            may_read.set()

        nbytes = len(head) + len(memory)
        headers = [(b"content-length", b"%d" % nbytes), (b"connection", b"close")]
        await exchange.stream(headers, head, memoryview(memory), note)
        memory[:] = b"b" * len(memory)  # now it is allocated to another call

    async def read() -> bytes:
        loop = asyncio.get_running_loop()
        got = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            await may_read.wait()
            while piece := await loop.sock_recv(client, READ_BYTES):
                got += piece
                await asyncio.sleep(NAP_S)
        return bytes(got)

    got = read_from(answer, client, read)

    start, _, body = got.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 200 ")
    assert unsent == [len(memory)], "all of it was unsent, and uvicorn did not wait"
    assert body.startswith(head)
    assert body.count(b"b") == 0
    assert body.endswith(b"a" * len(memory))


Buffer = bytes | bytearray | memoryview


class Recording(asyncio.Transport):
    """A transport that notes the sizes of all writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self.writes: list[list[int]] = []

    def write(self, data: Buffer) -> None:
        if data:
            self.writes.append([len(data)])
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        parts = list(list_of_data)
        self.writes.append([len(part) for part in parts])
        self._transport.writelines(parts)

    def close(self) -> None:
        self._transport.close()


@pytest.mark.parametrize(("rest", "count"), [(0, 2), (JOIN_BYTES - 1000, 2), (JOIN_BYTES, 3)])
def test_a_large_response_has_no_small_writes(rest: int, count: int) -> None:
    """Its head and the head of its body go with the first slice, a short end with the last one."""
    client = socket.socket()
    data = bytearray(os.urandom(2 * SLICE_BYTES + 2 * JOIN_BYTES))
    head = b"h" * 80
    steps: list[int] = []
    progress: list[int] = []
    writes: list[list[int]] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        connection, cycle = scope["extensions"]["warpcall"]
        exchange = Exchange(scope, receive, send)
        cycle.transport = recording = Recording(cycle.transport)
        steps.append(slice_nbytes(connection.transport.get_extra_info("socket"), SLICE_BYTES))
        del data[2 * steps[0] + rest :]
        length = b"%d" % (len(head) + len(data))
        headers = [(b"content-length", length), (b"connection", b"close")]
        await exchange.stream(headers, head, memoryview(data), progress.append)
        writes.extend(recording.writes)

    async def read() -> bytes:
        got = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while piece := await asyncio.get_running_loop().sock_recv(client, PIECE_BYTES):
                got += piece
        return bytes(got)

    got = read_from(answer, client, read)

    assert got.partition(b"\r\n\r\n")[2] == head + data
    assert len(writes) == count
    assert [len(writes[0]), sum(writes[0])] == [3, steps[0]], "whole segments, head and all"
    assert sum(progress) == len(data)


class Receiving:
    """An application that receives a body into memory of its own, after `wait`."""

    def __init__(self, nbytes: int, wait: Callable[[Exchange], Awaitable[object]]) -> None:
        self.memory = bytearray(nbytes)
        self._wait = wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await self._wait(exchange)
        with contextlib.suppress(InvalidInput):
            await exchange.receive_into(memoryview(self.memory), lambda nbytes: None)
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await exchange.respond(200, headers, b"")


BODY = os.urandom(4 << 20)
UPLOAD = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def test_a_large_body_does_not_pass_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    client = socket.socket()
    parsed: list[int] = []
    receive = Connection.data_received

    def data_received(self: Connection, data: bytes) -> None:
        parsed.append(len(data))
        receive(self, data)

    monkeypatch.setattr(Connection, "data_received", data_received)

    async def at_once(exchange: Exchange) -> None:
        pass

    async def read() -> bytes:
        return await asyncio.get_running_loop().sock_recv(client, PIECE_BYTES)

    app = Receiving(len(BODY), at_once)
    got = read_from(app, client, read, UPLOAD + BODY)

    assert got.startswith(b"HTTP/1.1 200 ")
    assert app.memory == BODY
    assert len(parsed) == 1


def test_a_client_that_leaves_before_its_large_body_is_noticed_while_it_waits_for_memory() -> None:
    client = socket.socket()

    async def until_it_has_left(exchange: Exchange) -> None:
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(PATIENCE_S):
            while not exchange.connection.exhausted:
                await asyncio.sleep(0.001)

    async def read() -> bytes:
        return await asyncio.get_running_loop().sock_recv(client, PIECE_BYTES)

    got = read_from(Receiving(len(BODY), until_it_has_left), client, read, UPLOAD)

    assert got.startswith(b"HTTP/1.1 200 ")


def fill(fd: int) -> None:
    """Send through the socket, not through its transport, until it takes no more."""
    with socket.socket(fileno=os.dup(fd)) as same:
        full = False
        while not full:
            full = True
            with contextlib.suppress(BlockingIOError):
                while same.send(b"c" * PIECE_BYTES):
                    full = False
            time.sleep(
                0.05
            )  # until the other side has acknowledged bytes, and the buffer has space again
