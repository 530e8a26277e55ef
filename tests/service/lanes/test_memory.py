"""Memory is allocated to calls and freed again, whatever becomes of the call or its client."""

from __future__ import annotations

import functools
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import safetensors.numpy

from demo.server import Server
from tests import waiting
from tests.service.requests import (
    PERMUTE,
    SAFETENSORS,
    header,
    log_of,
    metrics,
    problem_of,
    tensor,
)

pytestmark = pytest.mark.usefixtures("still_works")

MIB = 1 << 20
USED = 'warpcall_lane_arena_used{lane="cpu"}'
WAITING = 'warpcall_lane_arena_waiting{lane="cpu"}'
LEFT = 'warpcall_requests_total{op="permute",status="%d"}'
PATIENCE_S = 15.0
until = functools.partial(waiting.until, timeout_s=PATIENCE_S)


def used(http: httpx.Client) -> float:
    return metrics(http)[USED]


@pytest.fixture(autouse=True)
def _all_comes_back(http: httpx.Client) -> Iterator[None]:
    until(lambda: used(http) == 0, "the arena was not free before the test")
    yield
    until(lambda: used(http) == 0, "memory did not come back")
    assert metrics(http)[WAITING] == 0


@contextmanager
def begun(server: Server, nbytes: int) -> Iterator[socket.socket]:
    """A call of this many bytes, of which the head and the header were sent."""
    start = header({"x": tensor("U8", [nbytes], 0, nbytes)})
    head = (
        f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        f"Content-Length: {len(start) + nbytes}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode() + start)
        yield sock


@contextmanager
def kept_going(*socks: socket.socket) -> Iterator[None]:
    """Bodies that come slowly, yet fast enough not to be given up."""
    done = threading.Event()

    def pump() -> None:
        while not done.wait(0.1):
            for sock in socks:
                sock.sendall(b"\0" * (64 << 10))

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_without_room_a_call_is_refused_with_retry_after(
    server: Server, http: httpx.Client
) -> None:
    body = safetensors.numpy.save({"x": np.zeros(8 * MIB, np.uint8)})

    with begun(server, 31 * MIB) as one, begun(server, 31 * MIB) as two, kept_going(one, two):
        until(lambda: used(http) >= 62 * MIB, "two calls did not get room for their inputs")
        answer = http.post(f"{PERMUTE}?dims=0", content=body, headers={"content-type": SAFETENSORS})

    assert "came free within 0.5 s" in problem_of(answer, 429, "busy", None)
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_small_call_runs_beside_large_ones_on_their_way(
    server: Server, http: httpx.Client
) -> None:
    body = safetensors.numpy.save({"x": np.arange(4, dtype=np.uint8)})

    with begun(server, 31 * MIB) as one, kept_going(one):
        until(lambda: used(http) >= 31 * MIB, "the large call did not get its room")
        answer = http.post(f"{PERMUTE}?dims=0", content=body, headers={"content-type": SAFETENSORS})

    assert answer.content[-4:] == bytes(range(4))


@pytest.mark.parametrize("how", ["leaves", "resets"])
def test_a_client_that_is_gone_in_its_body_leaves_no_memory_allocated(
    how: str, server: Server, http: httpx.Client
) -> None:
    status = {"leaves": 422, "resets": 499}[how]  # a half-closed connection can still be answered
    before = metrics(http).get(LEFT % status, 0)

    with begun(server, 20 * MIB) as sock:
        sock.sendall(b"\0" * MIB)
        until(lambda: used(http) >= 20 * MIB, "the call did not get its room")
        if how == "resets":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    until(lambda: metrics(http).get(LEFT % status, 0) == before + 1, f"no answer of {status}")


def test_a_client_that_does_not_read_its_answer_is_given_up(
    server: Server, http: httpx.Client
) -> None:
    with begun(server, 20 * MIB) as sock:
        sock.sendall(b"\0" * (20 * MIB))
        until(lambda: used(http) >= 40 * MIB, "the call did not get its room")
        until(lambda: used(http) == 0, "memory stayed allocated to a client that does not read")

        received = 0
        while data := sock.recv(MIB):
            received += len(data)

    assert 0 < received < 20 * MIB  # cut short of its Content-Length, which any client notices
    assert "without completing response" not in log_of(server)


def test_refused_calls_leave_no_memory_allocated(http: httpx.Client) -> None:
    wrong = header({"x": tensor("U8", [MIB], 0, MIB)}) + b"\0" * MIB

    for query in ("dims=0,0", "dims=1", "axes=0", "dims=0&dims=0"):
        answer = http.post(
            f"{PERMUTE}?{query}", content=wrong, headers={"content-type": SAFETENSORS}
        )

        assert answer.status_code == 422
        assert used(http) == 0
