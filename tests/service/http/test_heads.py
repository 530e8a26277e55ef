"""Heads that a proxy could read differently, trailers, and clients that close one side."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from tests.servers import Server, running_server
from tests.service.connections import listening, play, received, until
from tests.service.databases import Database
from tests.service.requests import log_of, problem_of, send_raw

GET = "GET /v1/kernels HTTP/1.1\nHost: localhost"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that needs keys, and a key."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    key = database.key("alice")
    with running_server(database.settings) as server:
        yield server, key


def test_two_keys_are_none(keyed: tuple[Server, str]) -> None:
    server, key = keyed
    right, wrong = f"\nAuthorization: Bearer {key}", "\nAuthorization: Bearer wc_00000000_x"

    for fields in (right + wrong, wrong + right, right + right):
        detail = problem_of(send_raw(server, GET + fields), 400, "bad-request", "authorization")
        assert detail == "a request must have at most one Authorization header, got 2"
    assert send_raw(server, GET + right).status == 200


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("GET /healthz HTTP/1.1", "must have a Host header"),
        ("GET /healthz HTTP/1.1\nHost: localhost\nHost: y", "at most one Host header, got 2"),
        (
            "GET /healthz HTTP/1.1\nHost: localhost\nHOST: localhost",
            "at most one Host header, got 2",
        ),
        ("GET /healthz HTTP/1.0\nHost: localhost\nHost: y", "at most one Host header, got 2"),
    ],
)
def test_a_request_names_one_host(head: str, says: str, server: Server) -> None:
    assert says in problem_of(send_raw(server, head), 400, "bad-request", "host")


def test_an_old_client_need_not_name_it(server: Server) -> None:
    assert send_raw(server, "GET /healthz HTTP/1.0").status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_may_ask_for_the_head_only(path: str, keyed: tuple[Server, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", keyed[0].port, timeout=30)
    for _ in range(2):  # the second request finds no bytes of the first one's body
        connection.request("HEAD", path)
        answer = connection.getresponse()

        assert (answer.status, answer.read()) == (200, b"")
        assert int(answer.headers["content-length"]) > 2
    connection.close()


def test_a_key_in_a_trailer_opens_nothing(keyed: tuple[Server, str]) -> None:
    server, key = keyed
    head = "PUT /v1/tensors/t HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked"
    trailer = f"0\r\nAuthorization: Bearer {key}\r\nX-Request-Id: trailer\r\n\r\n".encode()

    for body in (trailer, b"2\r\n{}\r\n" + trailer):
        answer = send_raw(server, head, body)

        assert answer.status == 401
        assert answer.headers["x-request-id"] != "trailer"


def test_trailers_belong_to_no_request() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["headers"])
        await asyncio.sleep(0)  # the whole piece was parsed before the application ran
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body", "body": b""})

    async def scene() -> None:
        async with listening(app) as listener:
            for at in range(1, len(data)):
                seen.clear()
                client, connection = await listener.connect()
                connection.data_received(data[:at])
                await asyncio.sleep(0)
                connection.data_received(data[at:])
                await received(client, lambda came: came.count(b" 204 ") == 2)
                client.close()
                assert [[name for name, _ in one] for one in seen] == [
                    [b"host", b"transfer-encoding"],
                    [b"host", b"x-second"],
                ]

    data = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n0\r\nX-Trailer: 1\r\nAuthorization: 2\r\n\r\n"
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Second: 1\r\n\r\n"
    )
    seen: list[list[tuple[bytes, bytes]]] = []
    play(scene)


def test_trailers_are_bounded_as_headers_are(server: Server) -> None:
    head = (
        "POST /v1/kernels/permute HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"
        "Transfer-Encoding: chunked"
    )
    body = b"1\r\na\r\n0\r\n" + b"A: b\r\n" * 20_000

    assert send_raw(server, head, body).status == 431


def test_a_client_that_closes_its_side_after_a_request_is_answered(server: Server) -> None:
    for _ in range(20):
        answer = send_raw(server, "GET /readyz HTTP/1.1\nHost: localhost", finish=True)

        assert (answer.status, answer.json()["status"]) == (200, "ready")


def test_a_client_that_is_gone_is_noticed_although_it_sent_all() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["warpcall"][0].on_gone(gone.set)
        begun.set()
        await gone.wait()
        await receive()

    async def scene() -> None:
        async with listening(app) as listener:
            client, connection = await listener.connect()
            await asyncio.get_running_loop().sock_sendall(
                client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            await begun.wait()
            client.close()
            await until(gone.is_set)
            await until(connection.transport.is_closing)

    begun, gone = asyncio.Event(), asyncio.Event()
    play(scene)


def test_a_body_whose_request_is_answered_is_not_waited_for() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def drip(client: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.get_running_loop().sock_sendall(client, b"x")
                await asyncio.sleep(0.05)

    async def scene() -> bytes:
        async with listening(app) as listener:
            client, connection = await listener.connect()
            await asyncio.get_running_loop().sock_sendall(
                client, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            )
            dripping = asyncio.create_task(drip(client))
            came = await received(client, lambda came: b"\r\n\r\n" in came)
            await until(connection.transport.is_closing)
            await dripping
            client.close()
            return came

    assert play(scene).startswith(b"HTTP/1.1 200 ")


def test_malformed_requests_do_not_fill_the_log(server: Server) -> None:
    before = server.log.stat().st_size

    for _ in range(300):
        assert send_raw(server, "NONSENSE").status == 400

    deadline = time.monotonic() + 60
    while "malformed requests, the last from 127.0.0.1" not in server.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.log.stat().st_size - before < 10_000
    assert "Traceback" not in log_of(server)


def test_a_client_that_closes_at_once_gets_the_answer_that_is_ready(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        came = b"".join(iter(lambda: sock.recv(1 << 16), b""))

    head, _, body = came.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
