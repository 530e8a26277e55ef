"""A key that stops takes those with it who wait: for bytes, for memory, for the lane, to be read."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest

from tests import waiting
from tests.servers import Server, running_server
from tests.service.databases import Database, new_database
from tests.service.requests import PERMUTE, SAFETENSORS, header, tensor, well
from tests.service.stopped_lane import stopped_lane
from warpcall_service.auth import sync
from warpcall_service.auth.api_keys import KeyRecord, find
from warpcall_service.identity import Caller

pytestmark = pytest.mark.slow

until = functools.partial(waiting.until, timeout_s=20)

LARGE = 6 << 20  # inputs of a call that fills, with its outputs, most of the arena
SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_QUEUE_TIMEOUT_S": "60",
    "WARPCALL_BODY_TIMEOUT_S": "60",
}


@dataclass(frozen=True)
class Place:
    """A server, its database, and a key that is to stop."""

    server: Server
    database: Database
    key: str
    http: httpx.Client  # with a key that stays


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Database, str]]:
    """A server, its database, and a key that stays."""
    database = new_database(request, tmp_path_factory.mktemp("revocation"))
    key = database.key("bob", "admin")
    with running_server({**SETTINGS, **database.settings}) as server:
        yield server, database, key


@pytest.fixture
def place(running: tuple[Server, Database, str]) -> Iterator[Place]:
    server, database, other = running
    key = database.key("alice")
    with client(server, other) as http:
        with client(server, key) as mine:
            until(lambda: mine.get("/v1/kernels").status_code == 200)
        yield Place(server, database, key, http)
        assert well(http).status_code == 200, "the other key works on"
        until(lambda: lane(http, "arena_used") == 0)


def client(server: Server, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=30)


def request(key: str, nbytes: int) -> bytes:
    """Head and first bytes of a call whose tensor is still to come."""
    first = header({"x": tensor("U8", [nbytes], 0, nbytes)})
    return (
        f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {SAFETENSORS}\r\nContent-Length: {len(first) + nbytes}\r\n\r\n"
    ).encode() + first


@contextmanager
def sent(server: Server, *parts: bytes) -> Iterator[socket.socket]:
    """A connection on which these bytes were sent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        for part in parts:
            sock.sendall(part)
        yield sock


def lane(http: httpx.Client, what: str) -> float:
    for line in http.get("/metrics").text.splitlines():
        if line.startswith(f"warpcall_lane_{what}{{"):
            return float(line.rpartition(" ")[2])
    raise AssertionError(what)


def refused(sock: socket.socket, reason: str) -> None:
    """Check that the answer is that the key no longer counts, and why."""
    answer = b""
    while b"request_id" not in answer:
        data = sock.recv(1 << 16)
        assert data, answer
        answer += data
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    assert reason.encode() in answer


def test_the_database_is_looked_at_often_enough() -> None:
    assert 2 * sync.READ_S <= 1.0


@pytest.mark.parametrize("how", ["revoke", "disable"])
def test_a_new_request_is_refused(place: Place, how: str) -> None:
    mine = {"authorization": f"Bearer {place.key}"}
    assert place.http.get("/v1/kernels", headers=mine).status_code == 200

    if how == "revoke":
        place.database.command("keys", "revoke", place.key[:11])
    else:
        place.database.command("users", "disable", "alice")
    until(lambda: place.http.get("/v1/kernels", headers=mine).status_code == 401)

    reason = {"revoke": "was revoked", "disable": "is of the user alice, who is disabled"}[how]
    answer = place.http.get("/v1/kernels", headers=mine)
    assert answer.json()["detail"] == f"the API key {place.key[:11]} {reason}"
    if how == "disable":
        place.database.command("users", "enable", "alice")
        until(lambda: place.http.get("/v1/kernels", headers=mine).status_code == 200)


@pytest.mark.parametrize("nbytes", [1000, LARGE])
def test_a_request_whose_body_is_on_its_way_ends(place: Place, nbytes: int) -> None:
    with sent(place.server, request(place.key, nbytes), b"x" * (nbytes // 2)) as sock:
        until(lambda: lane(place.http, "arena_used") >= nbytes)

        place.database.revoke(place.key)

        refused(sock, "was revoked")


def test_a_request_that_waits_for_memory_ends(place: Place) -> None:
    other = place.http.headers["authorization"].split()[1]
    with sent(place.server, request(other, LARGE)):
        until(lambda: lane(place.http, "arena_used") >= LARGE)
        with sent(place.server, request(place.key, LARGE)) as sock:
            until(lambda: lane(place.http, "arena_waiting") == 1)

            place.database.revoke(place.key)

            refused(sock, "was revoked")
        assert lane(place.http, "arena_waiting") == 0


def test_requests_that_wait_for_the_lane_or_run_there_end(place: Place) -> None:
    body = request(place.key, 100) + b"x" * 100
    with sent(place.server, body) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")  # such a call is checked, and known
    with stopped_lane(place.server), ExitStack() as stack:
        socks = [stack.enter_context(sent(place.server, body)) for _ in range(12)]
        until(lambda: lane(place.http, "queued") + lane(place.http, "in_flight") == 12)

        place.database.revoke(place.key)

        for sock in socks:
            refused(sock, "was revoked")
        assert lane(place.http, "queued") == 0


@pytest.mark.parametrize("nbytes", [100, 500_000])
def test_calls_that_repeat_earlier_ones_of_their_connection_end_too(
    place: Place, nbytes: int
) -> None:
    body = request(place.key, nbytes) + b"x" * nbytes
    with ExitStack() as stack:
        socks = [stack.enter_context(sent(place.server)) for _ in range(12)]
        for sock in socks * 2:
            sock.sendall(body)
            answer = b""
            while not answer.endswith(b"x" * nbytes):
                answer += sock.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 ")
        with stopped_lane(place.server):
            for sock in socks:
                sock.sendall(body)
            until(lambda: lane(place.http, "queued") + lane(place.http, "in_flight") == 12)

            place.database.revoke(place.key)

            for sock in socks:
                refused(sock, "was revoked")
            assert lane(place.http, "queued") == 0
        for sock in socks:
            sock.sendall(body)
            refused(sock, "was revoked")


def test_a_repeated_call_whose_body_is_on_its_way_ends(place: Place) -> None:
    nbytes = 500_000
    body = request(place.key, nbytes) + b"x" * nbytes
    with sent(place.server, body) as sock:
        answer = b""
        while not answer.endswith(b"x" * nbytes):
            answer += sock.recv(1 << 16)
        sock.sendall(body[:-1000])
        until(lambda: lane(place.http, "arena_used") >= nbytes)

        place.database.revoke(place.key)

        refused(sock, "was revoked")
    until(lambda: lane(place.http, "arena_used") == 0)


def test_an_answer_that_is_not_read_is_cut_off(place: Place) -> None:
    with sent(place.server, request(place.key, LARGE), b"x" * LARGE) as sock:
        until(lambda: lane(place.http, "arena_used") >= LARGE)
        assert sock.recv(1000, socket.MSG_PEEK).startswith(b"HTTP/1.1 200 ")

        place.database.revoke(place.key)
        until(lambda: lane(place.http, "arena_used") == 0)

        received = 0
        with suppress(ConnectionResetError):
            while data := sock.recv(1 << 20):
                received += len(data)
    assert received < LARGE


def test_a_key_that_expires_ends_what_waits(place: Place) -> None:
    key = place.database.key("alice", lifetime_s=4)
    with client(place.server, key) as mine:
        until(lambda: mine.get("/v1/kernels").status_code == 200)

        with sent(place.server, request(key, LARGE)) as sock:
            refused(sock, "has expired")

        assert mine.get("/v1/kernels").status_code == 401


def test_the_first_key_ends_what_came_without_one(database: Database) -> None:
    with (
        running_server({**SETTINGS, **database.settings}) as server,
        sent(server, request("any", LARGE)) as sock,
        httpx.Client(base_url=server.url) as http,
    ):
        until(lambda: lane(http, "arena_used") >= LARGE)

        database.key("alice")

        refused(sock, "asks for an API key")


def test_an_expired_key_does_not_count_to_the_second() -> None:
    record = KeyRecord(Caller("alice", "call", "1"), b"", b"", expires_at=100)

    assert [record.refusal(now) for now in (99.9, 100.0)] == ["", "has expired"]
    assert find(b"wc_", {}) is None
