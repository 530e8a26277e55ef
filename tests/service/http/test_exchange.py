"""The memory that an answer is sent from: a transport refers to it no longer than it is lent."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import ClientGone, Exchange

NBYTES = 64 << 20  # more than goes on its way without a reader
PIECE_BYTES = 1 << 20
PATIENCE_S = 15.0


def test_a_client_that_only_stops_sending_reads_nothing_of_a_later_call() -> None:
    memory = bytearray(b"a") * NBYTES
    client = socket.socket()
    lent_on = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        transport = exchange.connection.transport

        def leave(nbytes: int) -> None:
            if transport.get_write_buffer_size():  # the socket has taken all that it can
                client.shutdown(socket.SHUT_WR)

        headers = [(b"content-length", b"%d" % NBYTES)]
        with pytest.raises(ClientGone):
            await exchange.stream(headers, b"", memoryview(memory), leave)
        memory[:] = b"b" * NBYTES
        exchange.abandon()
        lent_on.set()

    async def play() -> bytes:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(answer, lifespan="off", log_config=None)
        config.load()
        server = await loop.create_server(
            lambda: Connection(config, ServerState(), {}), "127.0.0.1", 0
        )
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await lent_on.wait()
        got = bytearray()
        while piece := await loop.sock_recv(client, PIECE_BYTES):
            got += piece
        server.close()
        return bytes(got)

    with client, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        got = runner.run(play())

    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert 0 < body.count(b"a") == len(body) < NBYTES
