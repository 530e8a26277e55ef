"""Calls that repeat earlier ones of their connection, with large bodies or bodies that come in pieces."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.server import Server
from tests.servers import running_server
from tests.service.calls.large_calls import (
    LARGE,
    SMALL,
    TIMEOUT_S,
    expected_calls,
    is_clean,
    noting_server,
    prepared,
    values,
)
from tests.service.http.test_quick import (
    Caller,
    check_both_ways,
    is_transposed,
    lane,
    refuses_connections,
    request,
    wait_for_log,
)
from tests.service.stopped_lane import stopped_lane
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts") / "calls"


@pytest.fixture(scope="module")
def server(counts: Path) -> Iterator[Server]:
    with noting_server(counts) as started:
        yield started


@pytest.fixture
def begun(counts: Path, server: Server) -> Iterator[list[int]]:
    yield from expected_calls(counts)


@pytest.mark.parametrize("shape", [LARGE, (200, 77), (1, 262_144)])
def test_the_response_is_that_of_the_ordinary_way(
    server: Server, begun: list[int], shape: tuple[int, int]
) -> None:
    check_both_ways(prepared(server, shape), values(1, shape))


def test_each_call_gets_its_own_values_and_is_logged(server: Server, begun: list[int]) -> None:
    caller, begun[0] = prepared(server), 20
    ids = set()

    for n in range(20):
        head, body = caller.call(x := values(n))
        assert is_transposed(body, x)
        found = re.search(rb"x-request-id: (\S+)", head)
        assert found is not None
        ids.add(found[1].decode())

    assert len(ids) == 20
    wait_for_log(server, ids)


def test_a_small_body_in_pieces_is_received_as_a_large_one(
    server: Server, begun: list[int]
) -> None:
    caller, x = prepared(server, SMALL), values(1, SMALL)
    whole = request(x)
    begun[0] = 3

    for cut in (1, 100, x.nbytes):
        caller.sock.sendall(whole[:-cut])
        assert server.get("/healthz")[0] == 200, "it has read what came before"
        caller.sock.sendall(whole[-cut:])
        assert is_transposed(caller.receive()[1], x)


def test_a_body_may_come_byte_by_byte_with_the_next_request_behind_it(
    server: Server, begun: list[int]
) -> None:
    caller, begun[0] = prepared(server, SMALL), 1
    x, y = values(1, SMALL), values(2, SMALL)
    whole = request(x)

    caller.sock.sendall(whole[:-40])
    for at in range(len(whole) - 40, len(whole) - 1):
        caller.sock.sendall(whole[at : at + 1])
        time.sleep(0.001)
    caller.sock.sendall(whole[-1:] + request(y))

    assert is_transposed(caller.receive()[1], x)
    assert is_transposed(caller.receive()[1], y)


def test_requests_that_wait_for_the_response_before_are_answered_in_order(
    server: Server, begun: list[int]
) -> None:
    caller, xs = prepared(server), [values(n) for n in range(6)]

    with stopped_lane(server):
        caller.send(xs[0])
        until(lambda: lane(server, "in_flight") == 1)
        caller.sock.sendall(request(xs[1])[:1000])  # the beginning of the next one
        assert server.get("/healthz")[0] == 200
    caller.sock.sendall(request(xs[1])[1000:])
    bodies = [caller.receive()[1], caller.receive()[1]]

    begun[0] = 2
    assert all(is_transposed(body, x) for body, x in zip(bodies, xs, strict=False))


def test_a_client_that_stops_early_gets_a_problem(server: Server, begun: list[int]) -> None:
    caller, x = prepared(server), values(1)
    nbytes = len(request(x)) - request(x).index(b"\r\n\r\n") - 4

    caller.sock.sendall(request(x)[:-1000])
    caller.sock.shutdown(socket.SHUT_WR)
    head, body = caller.receive()

    assert head.startswith(b"HTTP/1.1 422 ")
    assert b"connection: close" in head
    problem = json.loads(body)
    assert problem["field"] == "body"
    assert problem["detail"] == (
        f"the body must have {nbytes} bytes, the client stopped after {nbytes - 1000}"
    )
    assert caller.sock.recv(1) == b""
    until(lambda: is_clean(server))


def test_a_client_that_only_stops_sending_gets_its_response(
    server: Server, begun: list[int]
) -> None:
    caller, x = prepared(server), values(3)

    caller.send(x)
    caller.sock.shutdown(socket.SHUT_WR)

    assert is_transposed(caller.receive()[1], x)


@pytest.mark.parametrize("missing", [1000, 0])
def test_clients_that_leave_leave_nothing_behind(
    server: Server, begun: list[int], missing: int
) -> None:
    callers = [prepared(server) for _ in range(4)]
    begun[0] = 4

    with stopped_lane(server):
        for caller in callers:
            caller.sock.sendall(request(values(4))[: -missing or None])
            until(lambda: server.get("/healthz")[0] == 200)
            caller.sock.close()
    until(lambda: is_clean(server))

    last, begun[0] = prepared(server), 5
    assert is_transposed(last.call(values(5))[1], values(5))


def test_a_client_that_sends_too_slowly_is_refused(server: Server, begun: list[int]) -> None:
    caller = prepared(server)

    caller.sock.sendall(request(values(1))[:-1000])
    head, body = caller.receive()

    assert head.startswith(b"HTTP/1.1 504 ")
    assert b"connection: close" in head
    assert f"in {TIMEOUT_S} s (body_timeout_s)" in json.loads(body)["detail"]
    assert caller.sock.recv(1) == b""
    until(lambda: is_clean(server))


def test_a_client_that_does_not_read_keeps_its_memory_for_a_limited_time(server: Server) -> None:
    """Most of these responses stay in the sockets' buffers; so many that one does not fit, either."""
    caller = Caller(server)
    caller.call(values(0))

    caller.sock.settimeout(0.5)
    for n in range(40):
        try:
            caller.send(values(n))
        except TimeoutError:
            break
    assert not is_clean(server)
    until(lambda: is_clean(server))


def test_the_deadline_of_the_caller_counts_from_the_head(server: Server, begun: list[int]) -> None:
    caller, soon = Caller(server), "X-Warpcall-Timeout: 1\r\n"
    caller.call(values(0), soon)

    caller.sock.sendall(request(values(1), soon)[:-1000])
    began = time.monotonic()
    head, body = caller.receive()

    assert time.monotonic() - began < TIMEOUT_S
    assert head.startswith(b"HTTP/1.1 504 ")
    assert json.loads(body)["detail"] == "the deadline passed before the call was begun"


def test_what_comes_after_the_deadline_is_not_written_into_memory_of_another_call(
    server: Server, begun: list[int]
) -> None:
    late, other, x, soon = Caller(server), prepared(server), values(2), "X-Warpcall-Timeout: 1\r\n"
    begun[0] = 2
    late.call(values(0), soon)
    text, part = request(values(1), soon), 1 << 19
    until(lambda: is_clean(server))

    late.sock.sendall(text[:part])
    assert late.receive()[0].startswith(b"HTTP/1.1 504 ")
    other.sock.sendall(request(x)[:-1000])
    until(lambda: not is_clean(server))
    for rest in (text[part : 2 * part], b""):
        assert server.get("/healthz")[0] == 200, "it has read what came before"
        late.sock.sendall(rest)
    other.sock.sendall(request(x)[-1000:])

    assert is_transposed(other.receive()[1], x)


def test_a_call_that_the_lane_does_not_end_in_time_keeps_its_connection(
    server: Server, begun: list[int]
) -> None:
    caller, soon = Caller(server), "X-Warpcall-Timeout: 1\r\n"
    caller.call(values(0), soon)

    with stopped_lane(server):
        caller.send(values(1), soon)
        head, _ = caller.receive()

    assert head.startswith(b"HTTP/1.1 504 ")
    assert b"connection: close" not in head
    begun[0] = 2
    assert is_transposed(caller.call(values(2), soon)[1], values(2))


def test_without_memory_at_once_a_call_takes_the_ordinary_way(
    server: Server, begun: list[int]
) -> None:
    caller, others, begun[0] = prepared(server), [Caller(server), Caller(server)], 0
    held = request(values(9, (96, 65_536)))  # 24 of 64 MiB, and as much for the outputs

    for other in others:
        other.sock.sendall(held[:1000])
    until(lambda: lane(server, "arena_waiting") == 1)
    caller.send(values(2))
    until(lambda: lane(server, "arena_waiting") == 2)
    for other in others:
        other.sock.close()

    assert is_transposed(caller.receive()[1], values(2))


def test_when_the_server_stops_a_body_on_its_way_is_refused_and_a_call_ends() -> None:
    settings = {"WARPCALL_DEVICES": "cpu", "WARPCALL_DRAIN_TIMEOUT_S": "1"}
    with running_server(settings) as server:
        half, whole = prepared(server), prepared(server)
        with stopped_lane(server):
            half.sock.sendall(request(values(1))[:-1000])
            whole.send(values(2))
            until(lambda: lane(server, "in_flight") == 1)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refuses_connections(server))
        _, body = whole.receive()
        head, text = half.receive()

    assert is_transposed(body, values(2))
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(text)["detail"] == "the server is stopping"
