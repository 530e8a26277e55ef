"""Limits on stored tensors of several users, and their loss with the worker of a lane."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from tests.e2e.test_survives import lane_of, until
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.requests import PERMUTE, SAFETENSORS, metrics, problem_of, well
from tests.service.stored_tensors import ALL, X, get, listed, memory, put
from tests.suspended import suspend
from tests.waiting import lives
from warpcall import InvalidInput
from warpcall_service.calls.tensor_session import common_lane

KB = 1 << 10
SMALL = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_TENSOR_USER_BYTES": str(64 * KB),
    "WARPCALL_TENSOR_DEVICE_BYTES": str(96 * KB),
    "WARPCALL_TENSOR_USER_COUNT": "8",
    "WARPCALL_TENSOR_MAX_TTL_S": "100",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Callable[[str], httpx.Client]]]:  # fmt: skip
    """A server of small quotas, and clients for users of it."""
    folder = tmp_path_factory.mktemp("data")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {name: database.key(name, "admin") for name in ("alice", "bob")}
    with running_server({**database.settings, **SMALL}) as server:
        yield (
            server,
            lambda name: httpx.Client(
                base_url=server.url, headers={"authorization": f"Bearer {keys[name]}"}, timeout=30
            ),
        )


@pytest.fixture
def users(
    shared: tuple[Server, Callable[[str], httpx.Client]],
) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with shared[1]("alice") as alice, shared[1]("bob") as bob:
        yield alice, bob
        for user in (alice, bob):
            user.delete(ALL)


def test_one_users_tensors_are_nobody_elses(users: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = users
    put(alice, "x")
    put(bob, "x", X + 1)
    put(alice, "secret")

    answers = [
        bob.get(f"{ALL}/secret"),
        bob.delete(f"{ALL}/secret"),
        bob.post(f"{PERMUTE}?dims=0,1", headers={"X-Warpcall-Tensors": "x=secret"}),
    ]
    bob.delete(ALL)

    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert [answer.json()["detail"] for answer in answers] == [
        "there is no tensor 'secret': none was put here, or it is long gone"
    ] * 3
    assert listed(alice) == ["x", "secret"]
    np.testing.assert_array_equal(get(alice, "x"), X)


def test_a_full_quota_harms_nobody_else(users: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = users
    for i in range(3):
        put(alice, f"t{i}", np.zeros(20 * KB, np.uint8), {"X-Warpcall-Ttl": "50"})

    busy = put(alice, "more", np.zeros(20 * KB, np.uint8))
    too_large = put(alice, "more", np.zeros(65 * KB, np.uint8))
    kept_output = alice.post(
        f"{PERMUTE}?dims=0", headers={"X-Warpcall-Tensors": "x=t0", "X-Warpcall-Store": "out=o"}
    )
    plain = alice.post(f"{PERMUTE}?dims=0", headers={"X-Warpcall-Tensors": "x=t0"})
    others = put(bob, "b", np.zeros(20 * KB, np.uint8)), put(bob, "c", np.zeros(20 * KB, np.uint8))

    detail = problem_of(busy, 429, "busy", "tensors")
    assert detail.startswith("alice stores 61440 bytes, with 20480 more")
    assert 40 < int(busy.headers["retry-after"]) <= 50
    assert "alice may store at most 65536" in problem_of(too_large, 413, "too-large", "tensors")
    problem_of(kept_output, 429, "busy", "tensors")
    assert plain.status_code == 200
    assert [answer.status_code for answer in others] == [200, 429]
    assert "cpu stores 81920 bytes" in others[1].json()["detail"]
    assert listed(alice) == ["t0", "t1", "t2"]
    alice.delete(f"{ALL}/t0")
    assert put(alice, "more", np.zeros(20 * KB, np.uint8)).status_code == 200


def test_a_quota_is_also_a_number_of_tensors(users: tuple[httpx.Client, httpx.Client]) -> None:
    alice, _ = users
    empty = np.zeros(0, np.uint8)

    statuses = [put(alice, f"t{i}", empty).status_code for i in range(9)]
    many = alice.put(
        ALL, content=save({f"{i}": empty for i in range(9)}), headers={"content-type": SAFETENSORS}
    )

    assert statuses == [200] * 8 + [429]
    problem_of(many, 413, "too-large", "tensors")


def test_nobody_keeps_longer_than_allowed(users: tuple[httpx.Client, httpx.Client]) -> None:
    answer = put(users[0], "x", X, {"X-Warpcall-Ttl": "101"})

    assert "at most 100" in problem_of(answer, 422, "invalid-input", "X-Warpcall-Ttl")


def test_what_a_lane_had_is_gone_with_its_process_and_said_so(
    users: tuple[httpx.Client, httpx.Client], shared: tuple[Server, Callable[[str], httpx.Client]]
) -> None:
    alice, _ = users
    put(alice, "x")
    lane = lane_of(shared[0])

    os.kill(lane.pid, signal.SIGKILL)
    until(lambda: not lives(lane))
    until(lambda: not listed(alice))
    answer = alice.get(f"{ALL}/x")
    until(lambda: well(alice).status_code == 200)

    detail = problem_of(answer, 404, "not-found", "x")
    assert detail == "there is no tensor 'x': the process of cpu, which had it, was lost"
    assert memory(alice) == 0
    assert put(alice, "x").status_code == 200
    np.testing.assert_array_equal(get(alice, "x"), X)


def test_a_call_that_waits_with_a_tensor_when_the_lane_dies_is_refused(
    users: tuple[httpx.Client, httpx.Client], shared: tuple[Server, Callable[[str], httpx.Client]]
) -> None:
    alice, _ = users
    put(alice, "x")
    headers = {"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "out=y"}
    alice.post(f"{PERMUTE}?dims=0,1", headers=headers)  # checked once: the next ones only wait
    lane = lane_of(shared[0])
    suspend(lane)

    with ThreadPoolExecutor(4) as pool:
        waiting = [
            pool.submit(alice.post, f"{PERMUTE}?dims=0,1", headers=headers) for _ in range(4)
        ]
        until(lambda: metrics(alice)['warpcall_lane_in_flight{lane="cpu"}'] == 4)
        lane.kill()
        answers = [call.result() for call in waiting]

    assert sorted({answer.status_code for answer in answers}) == [404, 503]
    detail = {json.loads(answer.text)["detail"] for answer in answers if answer.status_code == 404}
    assert len(detail) == 1
    assert "is gone: the process of its device was replaced" in detail.pop()
    assert listed(alice) == []
    until(lambda: memory(alice) == 0)


def test_tensors_of_one_call_must_be_on_one_device() -> None:
    together = common_lane({"x": "cuda:1", "mask": "cuda:1"})

    with pytest.raises(InvalidInput, match="x is on cuda:0 and weight is on cuda:1") as refused:
        common_lane({"x": "cuda:0", "mask": "cuda:0", "weight": "cuda:1"})

    assert (together, common_lane({})) == ("cuda:1", "")
    assert refused.value.field == "X-Warpcall-Tensors"
