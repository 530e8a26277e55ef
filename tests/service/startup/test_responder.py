"""Probes are answered while the server starts, and other connections lose nothing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from warpcall_service.startup import responder as module
from warpcall_service.startup.responder import StartResponder

CALL = (
    b"POST /v1/kernels/permute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    + b"x" * 99
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def responder(listener: socket.socket) -> Iterator[StartResponder]:
    responder = StartResponder([listener], lambda: ["cpu: starting, its process is starting"])
    responder.start()
    yield responder
    for connection in responder.stop():
        connection.close()


def connected(listener: socket.socket) -> socket.socket:
    client = socket.create_connection(listener.getsockname())
    client.settimeout(30)
    return client


def answer(listener: socket.socket, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body of what a client gets."""
    with connected(listener) as client:
        client.sendall(request)
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


@pytest.mark.usefixtures("responder")
def test_health_is_answered(listener: socket.socket) -> None:
    status, _, body = answer(listener, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (status, json.loads(body)) == (200, {"status": "ok"})


@pytest.mark.usefixtures("responder")
def test_readiness_is_refused_with_the_reasons_and_a_time_to_come_again(
    listener: socket.socket,
) -> None:
    status, head, body = answer(listener, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert status == 503
    assert b"retry-after: 1" in head
    assert json.loads(body)["reasons"] == ["cpu: starting, its process is starting"]


@pytest.mark.usefixtures("responder")
def test_a_probe_with_head_gets_no_body(listener: socket.socket) -> None:
    status, _, body = answer(listener, b"HEAD /readyz HTTP/1.0\r\n\r\n")

    assert (status, body) == (503, b"")


@pytest.mark.parametrize(
    "sent",
    [CALL, b"GET /readyz HTTP/1.1\r\nHo", b"GET /v1/me HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""],
)
def test_every_other_connection_is_kept_with_all_its_bytes(
    listener: socket.socket, responder: StartResponder, sent: bytes
) -> None:
    with connected(listener) as client:
        client.sendall(sent)
        answer(listener, b"GET /healthz HTTP/1.1\r\n\r\n")  # by then the first was accepted

        (kept,) = responder.stop()

        with kept:
            kept.setblocking(True)
            assert not sent or kept.recv(1 << 16) == sent
            kept.sendall(b"later")
            assert client.recv(100) == b"later"


def test_probes_beyond_the_limit_wait_and_none_is_lost(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    responder = StartResponder([listener], list)
    clients = [connected(listener) for _ in range(5)]
    for client in clients:
        client.sendall(CALL)
    responder.start()
    deadline = time.monotonic() + 30
    while len(responder._kept) < 3:
        assert time.monotonic() < deadline

    kept = responder.stop()
    listener.setblocking(True)
    kept += [listener.accept()[0] for _ in range(2)]

    assert len(kept) == 5
    for sock in (*kept, *clients):
        sock.close()


def test_a_client_that_leaves_makes_room(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 1)
    responder = StartResponder([listener], list)
    responder.start()
    connected(listener).close()

    assert answer(listener, b"GET /healthz HTTP/1.1\r\n\r\n")[0] == 200
    assert responder.stop() == []
    assert responder.stop() == []
