"""Users and their limits: each user has their own, learns when to try again, and leaves room for
others.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import httpx
import numpy as np
import psutil
import pytest
import safetensors.numpy

from tests import waiting
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.requests import PERMUTE, SAFETENSORS, header, logged, metrics, problem_of, tensor
from tests.suspended import suspended

pytestmark = pytest.mark.slow

MIB = 1 << 20
PATIENCE_S = 15.0
SETTINGS = {
    "WARPCALL_ARENA_BYTES": "64MiB",
    "WARPCALL_QUEUE_TIMEOUT_S": "10",
    "WARPCALL_USER_MAX_REQUESTS": "8",
    "WARPCALL_USER_MAX_BYTES": "100MiB",
    "WARPCALL_USER_REQUESTS_PER_S": "100",
}
KEYS: dict[int, dict[str, str]] = {}  # of the users of each server, by its port
USED = 'warpcall_lane_arena_used{lane="cpu"}'
KEPT = ("queued", "in_flight")
WAITING = 'warpcall_lane_arena_waiting{lane="cpu"}'


@contextmanager
def serving(settings: Mapping[str, str]) -> Iterator[Server]:
    """A server that knows three users; carol may look at /metrics."""
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
        keys = {name: database.key(name) for name in ("alice", "bob")}
        keys["carol"] = database.key("carol", "admin")
        with running_server({**settings, **database.settings}) as server:
            KEYS[server.port] = keys
            yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(SETTINGS) as running:
        yield running


@contextmanager
def user(server: Server, name: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEYS[server.port][name]}", "content-type": SAFETENSORS}
    with httpx.Client(base_url=server.url, timeout=30, headers=headers) as client:
        yield client


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    with user(server, "alice") as client:
        yield client


@pytest.fixture
def bob(server: Server) -> Iterator[httpx.Client]:
    with user(server, "bob") as client:
        yield client


@pytest.fixture
def watcher(server: Server) -> Iterator[httpx.Client]:
    """Looks at the server, as a user of whom nothing is measured."""
    with user(server, "carol") as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_stays(server: Server) -> Iterator[None]:
    yield
    with user(server, "carol") as client:
        until(client, USED, 0)
        assert client.get("/metrics").status_code == 200


def until(client: httpx.Client, metric: str, value: float) -> None:
    """Wait for a metric, slowly enough for the rate limit."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := metrics(client)[metric]) != value:
        assert time.monotonic() < deadline, f"{metric} is {now}, not {value}"
        time.sleep(0.03)


@contextmanager
def begun(server: Server, name: str, nbytes: int) -> Iterator[socket.socket]:
    """A call of which the head and the header were sent.

    It takes twice `nbytes` of the arena: for its input and its output.
    """
    start = header({"x": tensor("U8", [nbytes], 0, nbytes)})
    head = (
        f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        f"Authorization: Bearer {KEYS[server.port][name]}\r\nContent-Length: {len(start) + nbytes}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode() + start)
        yield sock


def body_of(nbytes: int) -> bytes:
    return safetensors.numpy.save({"x": np.zeros(nbytes, np.uint8)})


def call(client: httpx.Client, nbytes: int = 4) -> httpx.Response:
    return client.post(f"{PERMUTE}?dims=0", content=body_of(nbytes))


def calls_done(server: Server) -> list[str]:
    """The users of all calls so far, in the order in which the server was done with them; when
    their clients have read their answers says as much of the clients.
    """
    return [line["user"] for line in logged(server) if line.get("status") == 200 and line["op"]]


def until_done(server: Server, count: int) -> list[str]:
    """`calls_done`, once there are so many: a line follows its answer."""
    waiting.until(lambda: len(calls_done(server)) >= count)
    return calls_done(server)


def test_me_tells_who_one_is_and_what_one_may(alice: httpx.Client) -> None:
    answer = alice.get("/v1/me")

    assert answer.json() == {
        "name": "alice",
        "role": "call",
        "limits": {
            "requests_in_flight": 8,
            "bytes_in_flight": 100 * MIB,
            "requests_per_s": 100.0,
        },
        "in_flight": {"requests": 1, "bytes": 0},
    }


def test_me_tells_what_is_in_flight(
    server: Server, alice: httpx.Client, bob: httpx.Client, watcher: httpx.Client
) -> None:
    with begun(server, "alice", 10 * MIB):
        until(watcher, USED, 20 * MIB)
        hers = alice.get("/v1/me").json()["in_flight"]
        in_flight = bob.get("/v1/me").json()["in_flight"]

    assert hers == {"requests": 2, "bytes": 20 * MIB}
    assert in_flight == {"requests": 1, "bytes": 0}


def test_requests_beyond_those_in_flight_are_refused_with_retry_after(
    server: Server, alice: httpx.Client, bob: httpx.Client, watcher: httpx.Client
) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(begun(server, "alice", MIB))
        until(watcher, USED, 16 * MIB)
        refused = [call(alice), alice.get("/v1/me")]
        other = call(bob)

    for answer in refused:
        assert "8 requests in flight, at most 8" in problem_of(answer, 429, "busy", None)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert other.status_code == 200
    until(watcher, USED, 0)
    assert call(alice).status_code == 200


def test_bytes_beyond_those_in_flight_are_refused_with_retry_after(
    server: Server, alice: httpx.Client, bob: httpx.Client, watcher: httpx.Client
) -> None:
    with begun(server, "alice", 20 * MIB), begun(server, "alice", 20 * MIB):
        until(watcher, WAITING, 1)  # 40 MiB each: the second has to wait, and counts
        refused = call(alice, 11 * MIB)
        other = call(bob, MIB)

    said = problem_of(refused, 429, "busy", None)
    assert f"{80 * MIB} bytes in flight and asks for {22 * MIB}, at most {100 * MIB}" in said
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert other.status_code == 200
    until(watcher, USED, 0)
    assert call(alice, 11 * MIB).status_code == 200


def test_a_single_call_may_be_larger_than_the_bytes_in_flight() -> None:
    settings = {**SETTINGS, "WARPCALL_USER_MAX_BYTES": "1MiB"}
    with serving(settings) as server, user(server, "alice") as alice:
        answer = call(alice, 4 * MIB)

    assert answer.status_code == 200


def test_a_burst_of_requests_is_cut_off_and_the_time_to_come_back_is_true() -> None:
    settings = {**SETTINGS, "WARPCALL_USER_REQUESTS_PER_S": "0.5"}
    with ExitStack() as stack:
        server = stack.enter_context(serving(settings))
        alice, bob = (stack.enter_context(user(server, name)) for name in ("alice", "bob"))
        first, second = alice.get("/v1/me"), alice.get("/v1/me")
        other = bob.get("/v1/me")
        retry_after_s = int(second.headers["retry-after"])
        time.sleep(retry_after_s)
        third = alice.get("/v1/me")

    assert [first.status_code, second.status_code] == [200, 429]
    assert "0.5 requests a second" in problem_of(second, 429, "busy", None)
    assert retry_after_s == 2
    assert other.status_code == 200
    assert third.status_code == 200


def test_a_flood_that_waits_for_memory_does_not_keep_others_waiting(
    server: Server, bob: httpx.Client, watcher: httpx.Client
) -> None:
    with ExitStack() as stack:
        stack.enter_context(begun(server, "alice", 18 * MIB))  # 36 of 64 MiB with its outputs
        until(watcher, USED, 36 * MIB)
        for _ in range(3):
            stack.enter_context(begun(server, "alice", 8 * MIB))  # 52: beyond three quarters
        until(watcher, WAITING, 3)
        small, large = call(bob), call(bob, 12 * MIB)
        waiting = metrics(watcher)[WAITING]

    assert (small.status_code, large.status_code) == (200, 200)
    assert waiting == 3


def test_a_flood_that_waits_for_a_lane_lets_a_single_call_through(
    server: Server, alice: httpx.Client, bob: httpx.Client, watcher: httpx.Client
) -> None:
    children = psutil.Process(server.process.pid).children()
    (lane,) = (child for child in children if "warpcall_service.worker.main" in child.cmdline())

    def wait_until(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sum(watcher.get("/readyz").json()["lanes"][0][k] for k in KEPT) != count:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    earlier = len(calls_done(server))
    call(alice, 3 * MIB)  # its plan is known from here on: a lane that stands still answers nothing
    call(bob)
    before = len(until_done(server, earlier + 2))
    with suspended(lane):
        threads = [threading.Thread(target=call, args=(alice, 3 * MIB)) for _ in range(6)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(number)
        threads.append(threading.Thread(target=call, args=(bob,)))
        threads[-1].start()
        wait_until(7)
    for thread in threads:
        thread.join()

    order = until_done(server, before + 7)[before:]
    assert len(order) == 7, order
    assert order.index("bob") <= 1, order  # one was under way


def test_of_those_who_wait_for_memory_the_one_who_had_least_comes_first(
    server: Server, alice: httpx.Client, bob: httpx.Client, watcher: httpx.Client
) -> None:
    before = len(calls_done(server))
    with begun(server, "carol", 24 * MIB):
        until(watcher, USED, 48 * MIB)
        threads = [threading.Thread(target=call, args=(alice, 24 * MIB)) for _ in range(2)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(watcher, WAITING, number)
        threads.append(threading.Thread(target=call, args=(bob, 24 * MIB)))
        threads[-1].start()
        until(watcher, WAITING, 3)
    for thread in threads:
        thread.join()

    order = until_done(server, before + 3)[before:]
    assert order == ["alice", "bob", "alice"]  # bob waits for one call of alice
