"""Pipelined requests, and responses that nobody reads: one connection uses limited memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import time

import numpy as np
import pytest
import safetensors.numpy
from starlette.types import Receive, Scope, Send

from demo.server import STOP_TIMEOUT_S
from tests.servers import Server, running_server
from tests.service.connections import listening, play, received, until
from tests.service.databases import Database
from tests.service.requests import PERMUTE, SAFETENSORS
from warpcall_service.http.connection import HELD_BYTES
from warpcall_service.http.flow_control import PROGRESS_BYTES, UNSENT_BYTES, Flow
from warpcall_service.http.receive import PARSER_READ_BYTES

GET = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
MANY = 5_000
ASKED = 50
NAUGHTY = 40  # connections


class App:
    """Responds with the path and body of each request, as soon as the test sets `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await self.go.wait()
        answer = scope["path"].encode() + b" " + body + b"\n"
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def test_requests_sent_ahead_wait_unparsed_and_are_answered_in_order() -> None:
    async def scene() -> bytes:
        app = App()
        async with listening(app) as listener:
            client, connection = await listener.connect()
            data = b"".join(GET % number for number in range(MANY))
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, data))
            await until(lambda: app.begun > 0)
            for _ in range(100):
                await asyncio.sleep(0)
                assert app.begun == 1
                assert not connection.pipeline
                assert len(connection._held) < HELD_BYTES + PARSER_READ_BYTES
            await until(lambda: not connection.transport.is_reading())
            assert len(connection._held) < HELD_BYTES + PARSER_READ_BYTES
            app.go.set()
            came = await received(client, lambda came: came.count(b"\n/%d " % (MANY - 1)) == 1)
            await sending
            client.close()
            assert app.begun == MANY
            return came

    came = play(scene)

    at = -1
    for number in range(MANY):
        at = came.index(b"\n/%d \n" % number, at + 1)


def test_an_application_that_receives_again_reads_no_further() -> None:
    asked = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        while (await receive())["type"] != "http.disconnect":
            while asked < ASKED:
                asked += 1
                with contextlib.suppress(
                    TimeoutError
                ):  # the application waits for the client to leave
                    async with asyncio.timeout(0.001):
                        await receive()

    async def scene() -> None:
        async with listening(app) as listener:
            client, connection = await listener.connect()
            data = b"".join(GET % number for number in range(20 * MANY))
            with contextlib.suppress(BlockingIOError):
                client.send(data)
            await until(lambda: asked == ASKED)
            assert 0 < len(connection._held) < HELD_BYTES + PARSER_READ_BYTES
            client.close()

    play(scene)


def pipelined() -> tuple[bytes, list[bytes]]:
    """Pipelined requests of all kinds, and the bodies of their responses."""
    large = os.urandom(300 << 10)
    body = b"POST /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = GET % 0
    data += b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    data += b"POST /2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"%x\r\n" % len(body) + body + b"\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
    data += (
        b"POST /3 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(large) + large
    )
    data += GET % 4
    return data, [b"/0 ", b"/1 " + body, b"/2 " + body + b"abc", b"/3 " + large, b"/4 "]


@pytest.mark.parametrize("step", [1 << 20, 32 << 10, 4099, 100, 7])
def test_requests_of_all_kinds_are_separated(step: int) -> None:
    data, expected = pipelined()

    async def scene() -> bytes:
        app = App()
        app.go.set()
        async with listening(app) as listener:
            client, _ = await listener.connect()
            whole = asyncio.create_task(received(client, lambda came: came.endswith(b"/4 \n")))
            at = 0
            while at < len(data):
                # Small steps are not for the large body, which would take too long.
                end = at + (step if at < 500 or at > len(data) - 500 else max(step, 4099))
                await asyncio.get_running_loop().sock_sendall(client, data[at:end])
                at = end
                await asyncio.sleep(0)
            came = await whole
            client.close()
            return came

    came = play(scene)

    for answer in expected:
        head, _, came = came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert came.startswith(answer + b"\n")
        came = came[len(answer) + 1 :]


def test_a_large_call_and_those_behind_it_are_answered(server: Server) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 200_000), np.uint8)
    body = safetensors.numpy.save({"x": x})
    head = (
        f"POST {PERMUTE}?dims=1,0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    one = head.encode() + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        sock.sendall(one + one + one + last)
        came = b"".join(iter(lambda: sock.recv(1 << 20), b""))

    assert came.count(np.ascontiguousarray(x.T).tobytes()) == 3
    assert came.endswith(json.dumps({"status": "ok"}, separators=(",", ":")).encode())


class Transport(asyncio.Transport):
    """A transport of which only the number of unsent bytes matters."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == UNSENT_BYTES


def test_a_client_has_to_take_what_is_unsent() -> None:
    async def scene() -> None:
        transport = Transport()
        flow = Flow(transport)
        assert flow.stalled_s(100) == 0
        transport.unsent = 3 * PROGRESS_BYTES
        assert flow.stalled_s(101) == 1
        transport.unsent = (
            4 * PROGRESS_BYTES
        )  # the application sent more, which is no progress of the client
        assert flow.stalled_s(102) == 2
        transport.unsent -= PROGRESS_BYTES - 1
        assert flow.stalled_s(103) == 3
        transport.unsent -= 1
        assert flow.stalled_s(104) == 0
        transport.unsent = 4 * PROGRESS_BYTES
        assert flow.stalled_s(105) == 1
        flow.pause_writing()
        flow.resume_writing()  # the client read most of it, and the application sent as much again
        assert flow.stalled_s(106) == 0
        assert flow.stalled_s(107) == 1
        transport.unsent = 0
        assert flow.stalled_s(108) == 0

    play(scene)


def test_what_is_unsent_at_the_first_look_is_not_stalled_since_ever() -> None:
    async def scene() -> None:
        now = asyncio.get_running_loop().time()
        transport = Transport()
        flow = Flow(transport)
        transport.unsent = PROGRESS_BYTES
        assert 0 <= flow.stalled_s(now + 1) <= 1

    play(scene)


def never_reads(port: int, request: bytes) -> socket.socket:
    """A connection that reads nothing, with more requests than the sockets can hold responses."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    send_more(sock, request)
    return sock


def send_more(sock: socket.socket, request: bytes) -> bool:
    """Whether the other side has the connection still open."""
    try:
        for _ in range(100):
            sock.send(request * 500)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return True


def test_answers_that_nobody_reads_have_a_timeout(server: Server) -> None:
    sock = never_reads(server.port, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with sock:
        deadline = time.monotonic() + 60  # the limit is 1 s in the settings of this server
        while send_more(sock, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            assert time.monotonic() < deadline, "the server keeps what nobody reads"
            time.sleep(0.1)


def test_the_server_ends_in_time_and_quietly_whoever_does_not_read(sqlite: Database) -> None:
    key = sqlite.key("alice")
    settings = {**sqlite.settings, "WARPCALL_DRAIN_TIMEOUT_S": "1"}
    with contextlib.ExitStack() as stack, running_server(settings) as server:
        requests = (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
            % key.encode(),
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n",
        )
        socks = [
            stack.enter_context(never_reads(server.port, requests[number % len(requests)]))
            for number in range(NAUGHTY)
        ]
        for _ in range(20):
            for sock in socks:
                send_more(sock, requests[0])
            time.sleep(0.02)
        for sock in socks[:5]:  # reset in the middle of the response
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        assert server.get("/healthz")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_TIMEOUT_S) == 0
        log = server.log.read_text()

    assert "Traceback" not in log
    assert "Exception in ASGI application" not in log
    assert "the handler is closed" not in log
