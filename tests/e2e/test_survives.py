"""The server under abuse: its lane killed, its callers gone, its queue full, itself stopped."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import psutil
import pytest

from demo.server import stop
from tests.servers import Server, running_server
from tests.service.requests import log_of
from tests.suspended import suspended
from tests.waiting import lives
from warpcall import Client, TimedOut, Unavailable

pytestmark = pytest.mark.slow

X = np.arange(12, dtype=np.float32).reshape(3, 4)
WAIT_S = 15.0
SMALL = {"WARPCALL_ARENA_BYTES": "64MiB"}  # quick to make
LEFT = 'warpcall_requests_total{op="permute",status="499"}'
IDENTITY = {
    "inputs": {"x": {"dtype": "F32", "shape": [2], "data": [1, 2]}},
    "params": {"dims": [0]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(SMALL) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def lane_of(server: Server) -> psutil.Process:
    """The one lane's process; waits while there is none."""
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = [
            child
            for child in psutil.Process(server.process.pid).children()
            if "warpcall_service.worker.main" in child.cmdline()
        ]
        return bool(found)

    until(look)
    return found[0]


def until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> float:
    """Wait for a condition; the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


def lane_state(server: Server) -> dict[str, Any]:
    lane: dict[str, Any] = json.loads(server.get("/readyz")[1])["lanes"][0]
    return lane


def raw(call: dict[str, Any]) -> bytes:
    """A call to permute as it goes through a socket."""
    body = json.dumps(call).encode()
    head = (
        f"POST /v1/kernels/permute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def transposed(client: Client) -> npt.NDArray[Any]:
    return client.permute(X, dims=(1, 0))


def test_a_lane_killed_in_a_call_is_reported_to_its_caller_and_replaced(
    server: Server, pool: ThreadPoolExecutor
) -> None:
    lane = lane_of(server)

    with Client(server.url, retries=0) as client:
        transposed(client)
        with suspended(lane):
            call = pool.submit(transposed, client)
            until(lambda: lane_state(server)["in_flight"] == 1)
            lane.kill()
            with pytest.raises(Unavailable, match="lost while it ran permute") as lost:
                call.result(WAIT_S)

    assert lost.value.retry_after_s is not None
    status, said = server.get("/readyz")
    assert status == 503
    assert "restarting" in said
    assert server.wait_ready(WAIT_S) < WAIT_S
    assert lane_of(server).pid != lane.pid


def test_the_sdk_gets_its_answer_although_the_lane_is_killed(
    server: Server, pool: ThreadPoolExecutor
) -> None:
    lane = lane_of(server)

    with Client(server.url) as client:
        with suspended(lane):
            calls = [pool.submit(transposed, client) for _ in range(8)]
            until(lambda: lane_state(server)["in_flight"] == 8)
            lane.kill()
        answers = [call.result(60) for call in calls]

    assert all(np.array_equal(answer, X.T) for answer in answers)


def test_calls_that_the_killed_lane_had_not_begun_notice_only_delay(
    server: Server, pool: ThreadPoolExecutor
) -> None:
    lane = lane_of(server)

    with Client(server.url, retries=0) as client:
        with suspended(lane):
            first = pool.submit(transposed, client)
            until(lambda: lane_state(server)["in_flight"] == 1)
            others = [pool.submit(transposed, client) for _ in range(12)]
            until(lambda: lane_state(server)["in_flight"] + lane_state(server)["queued"] == 13)
            lane.kill()
        with pytest.raises(Unavailable):
            first.result(WAIT_S)
        answers = [other.result(WAIT_S) for other in others]

    assert all(np.array_equal(answer, X.T) for answer in answers)


def test_a_call_that_comes_while_no_lane_lives_waits_for_the_next(server: Server) -> None:
    x = np.arange(7, dtype=np.int16)  # a shape not seen before: it has to be checked by a lane
    lane_of(server).kill()
    until(lambda: server.get("/readyz")[0] == 503)

    with Client(server.url, retries=0) as client:
        y = client.permute(x, dims=(0,))

    assert np.array_equal(x, y)


def test_a_deadline_ends_the_wait_and_not_the_lane(server: Server) -> None:
    lane = lane_of(server)
    with Client(server.url) as client:
        transposed(client)  # its plan is known from here on, so that the call gets to the lane

    with Client(server.url, timeout_s=0.5, retries=0) as impatient, suspended(lane):
        with pytest.raises(TimedOut):
            transposed(impatient)
        until(lambda: lane_state(server)["in_flight"] == 1)

    until(lambda: lane_state(server)["in_flight"] == 0)
    with Client(server.url) as client:
        assert np.array_equal(transposed(client), X.T)
    assert lane_of(server).pid == lane.pid


def test_a_call_whose_client_left_before_its_turn_is_dropped(server: Server) -> None:
    lane = lane_of(server)
    httpx.post(f"{server.url}/v1/kernels/permute", json=IDENTITY).raise_for_status()

    with suspended(lane):
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for sock in sockets:
            sock.sendall(raw(IDENTITY))
        until(lambda: lane_state(server)["in_flight"] + lane_state(server)["queued"] == 20)
        for sock in sockets:
            sock.close()
        until(lambda: lane_state(server)["queued"] == 0)
        sent = lane_state(server)["in_flight"]

    assert 0 < sent < 20
    until(lambda: lane_state(server)["in_flight"] == 0)
    until(lambda: metric(server, "warpcall_lane_arena_used") == 0)


def test_a_client_that_leaves_with_two_requests_on_their_way_is_no_error(server: Server) -> None:
    httpx.post(f"{server.url}/v1/kernels/permute", json=IDENTITY).raise_for_status()
    left = metric(server, LEFT)

    with suspended(lane_of(server)):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall((raw(IDENTITY)) * 2)
            until(lambda: lane_state(server)["in_flight"] == 1)
        until(lambda: metric(server, LEFT) == left + 1)

    until(lambda: lane_state(server)["in_flight"] == 0)
    assert "without starting response" not in log_of(server)


def test_sigterm_lets_calls_under_way_end(pool: ThreadPoolExecutor) -> None:
    with running_server(SMALL) as leaving, Client(leaving.url, retries=0) as client:
        transposed(client)
        lane = lane_of(leaving)
        with suspended(lane):
            call = pool.submit(transposed, client)
            until(lambda: lane_state(leaving)["in_flight"] == 1)
            leaving.process.send_signal(signal.SIGTERM)
            with pytest.raises(OSError, match="refused"):
                until(lambda: not refuses(leaving))
        answer = call.result(WAIT_S)
        status = stop(leaving.process)

    assert np.array_equal(answer, X.T)
    assert status == 0
    assert not psutil.pid_exists(lane.pid)


def test_a_killed_server_leaves_no_process_behind() -> None:
    with ExitStack() as stack:
        doomed = stack.enter_context(running_server(SMALL))
        lane = lane_of(doomed)
        doomed.process.kill()
        doomed.process.wait()
        until(lambda: not lives(lane))
        with pytest.raises(RuntimeError, match="status -9"):
            stack.close()


def test_more_calls_than_may_wait_are_refused_with_retry_after(pool: ThreadPoolExecutor) -> None:
    settings = {**SMALL, "WARPCALL_MAX_QUEUE": "2"}
    with running_server(settings) as small, suspended(lane_of(small)):
        calls = [
            pool.submit(httpx.post, f"{small.url}/v1/kernels/permute", json=IDENTITY, timeout=60)
            for _ in range(14)
        ]
        refused = [call for call in calls if wait_quietly(call, 1.0)]
        lane_of(small).resume()
        statuses = [call.result().status_code for call in calls]

    assert refused
    assert all(call.result().status_code == 429 for call in refused)
    assert all(int(call.result().headers["retry-after"]) >= 1 for call in refused)
    assert set(statuses) == {200, 429}


def wait_quietly(call: Any, timeout_s: float) -> bool:
    """Whether it ends in time."""
    try:
        call.result(timeout_s)
    except TimeoutError:
        return False
    return True


def refuses(server: Server) -> bool:
    """False while the server takes connections; raises once it does not."""
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    return True


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = server.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))
