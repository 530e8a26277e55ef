"""What large, slow calls hold or wait for does not keep small calls of others from their answers."""

from __future__ import annotations

import functools
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests import waiting
from tests.oip.requests import INFER, binary, packed
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.requests import PERMUTE, SAFETENSORS, header, metrics, problem_of, tensor

MIB = 1 << 20
PATIENCE_S = 30.0
until = functools.partial(waiting.until, timeout_s=PATIENCE_S)
ARENA = 64 * MIB
LARGEST = 62 * MIB
ATTACKERS = ("mallory", "trudy", "eve")
SETTINGS = {
    "WARPCALL_ARENA_BYTES": str(ARENA),
    "WARPCALL_MAX_QUEUE": "8",
    "WARPCALL_QUEUE_TIMEOUT_S": "60",
    "WARPCALL_BODY_TIMEOUT_S": "60",
}
USED = 'warpcall_lane_arena_used{lane="cpu"}'
WAITING = 'warpcall_lane_arena_waiting{lane="cpu"}'
SMALL = np.arange(24, dtype=np.uint8)
BODY = safetensors.numpy.save({"x": SMALL})


@dataclass(frozen=True)
class Place:
    server: Server
    keys: dict[str, str]

    def http(self, user: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[user]}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
        keys = {name: database.key(name) for name in (*ATTACKERS, "bob")}
        keys["carol"] = database.key("carol", "admin")
        with running_server({**SETTINGS, **database.settings}) as server:
            yield Place(server, keys)


@pytest.fixture
def watcher(place: Place) -> Iterator[httpx.Client]:
    with place.http("carol") as client:
        yield client
        until(lambda: metrics(client)[USED] == 0, "memory did not come back")
        assert metrics(client)[WAITING] == 0


@contextmanager
def slow(place: Place, user: str, nbytes: int) -> Iterator[socket.socket]:
    """A call of which the head and one byte of the tensor came."""
    start = header({"x": tensor("U8", [nbytes], 0, nbytes)})
    head = (
        f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        f"Authorization: Bearer {place.keys[user]}\r\n"
        f"Content-Length: {len(start) + nbytes}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", place.server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode() + start + b"\0")
        yield sock


@pytest.fixture
def full(place: Place, watcher: httpx.Client) -> Iterator[ExitStack]:
    """The largest call has its memory, and as many others as may wait for theirs."""
    with ExitStack() as stack:
        stack.enter_context(slow(place, "mallory", LARGEST // 2))
        until(lambda: metrics(watcher)[USED] >= LARGEST // 2, "the largest call has no memory")
        for number in range(8):
            stack.enter_context(slow(place, ATTACKERS[number % 3], LARGEST // 2))
        until(lambda: metrics(watcher)[WAITING] == 8, "the others do not wait")
        yield stack


def test_small_calls_in_every_format_succeed_beside_the_largest_ones(
    place: Place, full: ExitStack
) -> None:
    form = {"x": ("x.safetensors", BODY)}
    infer, headers = packed(
        {"inputs": [binary("x", SMALL, "UINT8")], "parameters": {"dims": "0"}}, SMALL.tobytes()
    )
    data = {"dtype": "U8", "shape": [24], "data": SMALL.tolist()}

    with place.http("bob") as bob:
        for _ in range(10):
            answers = [
                bob.post(f"{PERMUTE}?dims=0", content=BODY, headers={"content-type": SAFETENSORS}),
                bob.post(PERMUTE, json={"inputs": {"x": data}, "params": {"dims": [0]}}),
                bob.post(f"{PERMUTE}?dims=0", files=form),
                bob.post(INFER, content=infer, headers=headers),
                bob.put("/v1/tensors/x", content=BODY, headers={"content-type": SAFETENSORS}),
                bob.get("/v1/tensors/x"),
                bob.post(f"{PERMUTE}?dims=0", headers={"x-warpcall-tensors": "x=x"}),
            ]
            assert [answer.status_code for answer in answers] == [200] * 7, answers
        bob.delete("/v1/tensors")


def test_many_small_calls_at_once_succeed_beside_the_largest_ones(
    place: Place, full: ExitStack
) -> None:
    statuses: list[int] = []

    def some() -> None:
        with place.http("bob") as bob:
            for _ in range(20):
                answer = bob.post(
                    f"{PERMUTE}?dims=0", content=BODY, headers={"content-type": SAFETENSORS}
                )
                statuses.append(answer.status_code)

    threads = [threading.Thread(target=some) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert statuses == [200] * 160


def test_small_slow_calls_of_several_users_leave_room_for_another_one(
    place: Place, full: ExitStack, watcher: httpx.Client
) -> None:
    before = metrics(watcher)[USED]
    for user in ATTACKERS:
        for _ in range(100):
            full.enter_context(slow(place, user, 16 << 10))
    until(lambda: metrics(watcher)[USED] > before + MIB, "the small calls have no memory")

    with place.http("bob") as bob:
        answer = bob.post(f"{PERMUTE}?dims=0", content=BODY, headers={"content-type": SAFETENSORS})

    assert answer.status_code == 200


def test_a_call_that_needs_the_reserve_gets_the_size_that_is_allowed(place: Place) -> None:
    nbytes = LARGEST // 2 + 1
    with place.http("bob") as bob:
        answer = bob.post(
            f"{PERMUTE}?dims=0",
            content=header({"x": tensor("U8", [nbytes], 0, nbytes)}) + bytes(nbytes),
            headers={"content-type": SAFETENSORS},
        )

    said = problem_of(answer, 413, "too-large", "body")
    assert " together, which is arena_bytes less a reserve" in said
