"""Requests that repeat earlier ones of their connection: the short way answers as the ordinary one."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest

from demo.server import Server
from tests.servers import running_server
from tests.service.stopped_lane import stopped_lane
from tests.waiting import until
from warpcall import wire
from warpcall_service.lanes.lane_call import MAX_SHORT_AHEAD

Floats = npt.NDArray[np.float32]
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
# Only the ordinary way reads this header, which changes nothing else.
ORDINARY = "X-Request-Id: mine\r\n"
VARYING = (b"server-timing", b"x-request-id", b"date")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = {"WARPCALL_ARENA_BYTES": "64MiB", "WARPCALL_DEVICES": "cpu"}
    with running_server(settings) as started:
        yield started


class HasPort(Protocol):
    """A server."""

    @property
    def port(self) -> int: ...


class Caller:
    """One connection, which is closed when nothing refers to the caller any more."""

    def __init__(self, server: HasPort) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self.sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # what is sent leaves at once
        self._rest = b""
        weakref.finalize(self, self.sock.close)

    def send(self, x: Floats, headers: str = "", dims: str = "1,0") -> None:
        self.sock.sendall(request(x, headers, dims))

    def receive(self) -> tuple[bytes, bytes]:
        """Head and body of the next response."""
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            self._read()
        head = self._rest[:end]
        found = LENGTH.search(head)
        assert found is not None
        begin, nbytes = end + 4, int(found[1])
        while len(self._rest) < begin + nbytes:
            self._read()
        body, self._rest = self._rest[begin : begin + nbytes], self._rest[begin + nbytes :]
        return head, body

    def call(self, x: Floats, headers: str = "", dims: str = "1,0") -> tuple[bytes, bytes]:
        self.send(x, headers, dims)
        return self.receive()

    def _read(self) -> None:
        data = self.sock.recv(1 << 16)
        assert data, "the server closed the connection"
        self._rest += data


def request(x: Floats, headers: str = "", dims: str = "1,0") -> bytes:
    """A whole request."""
    body = wire.encode_header(wire.lay_out([wire.TensorInfo("x", "F32", x.shape)])) + x.tobytes()
    head = (
        f"POST /v1/kernels/permute?dims={dims} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Content-Type: {wire.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def values(n: int, shape: tuple[int, int] = (16, 8)) -> Floats:
    return np.random.default_rng(n).random(shape, np.float32)


def lines(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\r\n") if not line.lower().startswith(VARYING)]


def is_transposed(body: bytes, x: Floats) -> bool:
    return body.endswith(x.T.tobytes())


def prepared(server: Server) -> Caller:
    """A connection whose next call of this kind takes the short way."""
    caller = Caller(server)
    caller.call(values(0))
    caller.call(values(0))
    return caller


def check_both_ways(caller: Caller, x: Floats) -> None:
    """The response to a call is the same on the short way and on the ordinary one."""
    short, body = caller.call(x)
    ordinary, other = caller.call(x, ORDINARY)

    assert lines(short) == lines(ordinary)
    assert {line.partition(b":")[0] for line in short.split(b"\r\n")} == {
        line.partition(b":")[0] for line in ordinary.split(b"\r\n")
    }
    assert body == other
    assert is_transposed(body, x)


def test_the_response_is_that_of_the_ordinary_way(server: Server) -> None:
    check_both_ways(prepared(server), values(1))


def test_each_call_gets_its_own_values(server: Server) -> None:
    caller = prepared(server)

    answers = [(x := values(n), caller.call(x)[1]) for n in range(50)]

    assert all(is_transposed(body, x) for x, body in answers)


def test_a_call_with_the_same_head_and_another_shape_is_planned_anew(server: Server) -> None:
    caller, x = prepared(server), values(2, (8, 16))
    assert len(request(x)) == len(request(values(2)))

    _, body = caller.call(x)

    assert is_transposed(body, x)


def test_a_request_in_pieces_and_requests_in_one_piece_are_answered_in_order(
    server: Server,
) -> None:
    caller = prepared(server)
    xs = [values(n) for n in range(5)]

    whole = b"".join(map(request, xs))
    cut = len(request(xs[0])) * 3 + 17
    caller.sock.sendall(whole[:cut])
    first = [caller.receive() for _ in range(3)]
    caller.sock.sendall(whole[cut:])
    bodies = [body for _, body in (*first, caller.receive(), caller.receive())]

    assert all(is_transposed(body, x) for body, x in zip(bodies, xs, strict=True))


def test_a_client_that_stops_sending_still_gets_its_response(server: Server) -> None:
    caller, x = prepared(server), values(3)

    caller.send(x)
    caller.sock.shutdown(socket.SHUT_WR)

    assert is_transposed(caller.receive()[1], x)


def test_clients_that_leave_leave_nothing_behind(server: Server) -> None:
    callers = [prepared(server) for _ in range(8)]

    for caller in callers:
        caller.send(values(4))
        caller.sock.close()

    last = prepared(server)
    assert is_transposed(last.call(values(5))[1], values(5))
    metrics = server.get("/metrics")[1]
    assert 'warpcall_lane_arena_used{lane="cpu"} 0.0' in metrics
    assert json.loads(server.get("/v1/me")[1])["in_flight"]["requests"] == 1, "this request"


def test_calls_of_clients_that_leave_are_dropped(server: Server) -> None:
    callers = [prepared(server) for _ in range(MAX_SHORT_AHEAD + 4)]

    with stopped_lane(server):
        for caller in callers:
            caller.send(values(4))
        until(lambda: lane(server, "queued") + lane(server, "in_flight") == len(callers))
        assert lane(server, "queued") > 0
        for caller in callers:
            caller.sock.close()

        # Otherwise they would wait for 60 s (`call_timeout_s`).
        until(lambda: lane(server, "queued") == 0, timeout_s=20)


def test_a_request_waits_for_the_response_to_the_one_before(server: Server) -> None:
    caller, x, y = prepared(server), values(7), values(8)

    with stopped_lane(server):
        caller.send(x)
        until(lambda: lane(server, "in_flight") == 1)
        caller.send(y)
        assert server.get("/healthz")[0] == 200, "it has read what came before"
        assert lane(server, "in_flight") == 1

    assert is_transposed(caller.receive()[1], x)
    assert is_transposed(caller.receive()[1], y)


def lane(server: Server, what: str) -> float:
    """A metric of the lane."""
    found = re.search(rf'warpcall_lane_{what}{{lane="cpu"}} (\S+)', server.get("/metrics")[1])
    assert found is not None
    return float(found[1])


def test_every_call_is_counted_and_logged(server: Server) -> None:
    counted = re.compile(r'warpcall_requests_total\{op="permute",status="200"\} (\d+)')
    caller = prepared(server)
    before = counted.search(server.get("/metrics")[1])
    ids = []

    for n in range(20):
        head, _ = caller.call(values(n))
        ids.append(re.search(rb"x-request-id: (\S+)", head))
    after = counted.search(server.get("/metrics")[1])

    assert before is not None
    assert after is not None
    assert int(after[1]) - int(before[1]) == 20
    wanted = {found[1].decode() for found in ids if found is not None}
    assert len(wanted) == 20
    wait_for_log(server, wanted)


def wait_for_log(server: Server, ids: set[str]) -> None:
    """Wait until the log has one record of a call for each id."""
    done = threading.Event()
    for _ in range(200):
        records = [json.loads(line) for line in server.log.read_text().splitlines() if "{" in line]
        mine = [record for record in records if record.get("id") in ids]
        if len(mine) == len(ids):
            break
        done.wait(0.05)
    assert {record["id"] for record in mine} == ids
    assert len(mine) == len(ids)
    for record in mine:
        assert (record["status"], record["op"], record["user"]) == (200, "permute", "local")
        assert record["in"] > 512
        assert record["out"] > 512
        assert set(record["stages_ms"]) == {"upload", "queue", "h2d", "kernel", "d2h"}


def test_the_connection_closes_after_its_response_when_the_server_stops() -> None:
    settings = {"WARPCALL_ARENA_BYTES": "64MiB", "WARPCALL_DEVICES": "cpu"}
    with running_server(settings) as server:
        callers = [prepared(server) for _ in range(4)]
        with stopped_lane(server):
            for caller in callers:
                caller.send(values(6))
            until(lambda: lane(server, "in_flight") == 4)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refuses_connections(server))

        for caller in callers:
            head, body = caller.receive()
            assert is_transposed(body, values(6))
            assert b"connection: close" in head
            assert caller.sock.recv(1) == b""


def refuses_connections(server: HasPort) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=30).close()
    except OSError:
        return True
    return False
