"""Requests to upgrade the protocol: nothing is upgraded, and the body is read as a body."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess

import pytest
from starlette.types import Receive, Scope, Send

from demo.server import Server
from tests.service.connections import listening, play, received
from tests.service.requests import PERMUTE, problem_of, send_raw

HIDDEN = b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: hidden\r\n\r\n"
UPGRADES = ("websocket", "h2c", "TLS/1.0", "anything, else")
LAST = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: last\r\nConnection: close\r\n\r\n"
)


def asking(upgrade: str, connection: str, *, chunked: bool) -> bytes:
    """A call that asks for an upgrade, and whose body is another request."""
    head = (
        f"POST {PERMUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Upgrade: {upgrade}\r\nConnection: {connection}\r\n"
    ).encode()
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + body
    return head + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, upgrade, HTTP2-Settings"])
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_the_body_of_such_a_request_is_not_the_next_request(
    upgrade: str, connection: str, chunked: bool, server: Server
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(asking(upgrade, connection, chunked=chunked) + LAST)
        came = b"".join(iter(lambda: sock.recv(1 << 16), b""))

    assert came.count(b"HTTP/1.1 ") == 2
    assert came.startswith(b"HTTP/1.1 422 ")
    assert b"hidden" not in came
    assert b"x-request-id: last" in came


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_nor_is_it_when_its_bytes_are_split_anywhere(chunked: bool) -> None:
    data = asking("h2c", "Upgrade, HTTP2-Settings", chunked=chunked) + LAST

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        bodies.append((scope["path"], body))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def scene() -> None:
        async with listening(app) as listener:
            for at in range(1, len(data)):
                bodies.clear()
                client, connection = await listener.connect()
                connection.data_received(data[:at])
                await asyncio.sleep(0)
                connection.data_received(data[at:])
                await received(client, lambda _: False)
                client.close()
                assert bodies == [(PERMUTE, HIDDEN), ("/healthz", b"")], at

    bodies: list[tuple[str, bytes]] = []
    play(scene)


def test_a_tunnel_is_refused(server: Server) -> None:
    head = "CONNECT 127.0.0.1:80 HTTP/1.1\nHost: 127.0.0.1:80"

    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + HIDDEN)
        sock.shutdown(socket.SHUT_WR)
        came = b"".join(iter(lambda: sock.recv(1 << 16), b""))

    assert came.startswith(b"HTTP/1.1 400 ")
    assert came.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in came


def test_an_offer_of_a_websocket_gets_a_plain_answer(server: Server) -> None:
    head = (
        "GET /nothing HTTP/1.1\nHost: localhost\nUpgrade: websocket\nConnection: Upgrade\n"
        "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    )

    problem_of(send_raw(server, head), 404, "not-found", "path")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.parametrize("framing", [[], ["-H", "Transfer-Encoding: chunked"]])
def test_curl_that_would_rather_speak_http2_is_served(framing: list[str], server: Server) -> None:
    x = {"dtype": "I8", "shape": [3], "data": [2, 1, 0]}
    body = json.dumps({"inputs": {"x": x}, "params": {"dims": [0]}})
    command = ["curl", "-sS", "--http2", "--max-time", "30", *framing, "--json", body]

    done = subprocess.run(
        [*command, f"{server.url}{PERMUTE}"], capture_output=True, timeout=60, check=True
    )

    assert json.loads(done.stdout)["outputs"]["out"]["data"] == [2, 1, 0]
