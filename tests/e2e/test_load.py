"""Many callers at once, and large tensors: every answer right, nothing kept, memory bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psutil
import pytest

from bench.descriptors import held
from bench.machine import memory_of
from demo.server import Server, running_server
from demo.steps import Step, steps
from tests.e2e.test_survives import metric, until
from warpcall import Client

pytestmark = pytest.mark.slow

CLIENTS, CALLS = 8, 50
LARGE_ARENA = (512 << 20) + (64 << 20)
MB = 1 << 20
REST_MB = 300  # of the HTTP process, beside the arena
LANE_MB = 600  # of a lane, beside the arena: torch, temporaries of references, 128 MB kept for more
CUDA_MB = 600  # more where the lane has a GPU: the driver's and Triton's own


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server({"WARPCALL_ARENA_BYTES": str(LARGE_ARENA)}) as running:
        yield running


def call_at_random(url: str, known: Sequence[Step], seed: int) -> list[str]:
    """One client's calls; what was wrong with their answers."""
    draw = random.Random(seed)
    wrong = []
    with Client(url, progress=False) as client:
        for _ in range(CALLS):
            step = draw.choice(known)
            answer = client.call(step.op, step.inputs, step.params)
            if said := step.wrong(answer.outputs):
                wrong.append(f"{step.op}: {said}")
    return wrong


def test_eight_clients_with_mixed_calls_get_right_answers_and_leave_nothing(server: Server) -> None:
    http = psutil.Process(server.process.pid)
    known = steps()  # not in the threads: np.load may fail there before Python 3.11.8 (gh-106905)
    client = partial(call_at_random, server.url, known)
    client(0)
    descriptors, children = held(http.pid), [c.pid for c in http.children(recursive=True)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        wrong = list(pool.map(client, range(CLIENTS)))

    assert wrong == [[]] * CLIENTS
    assert metric(server, "warpcall_lane_arena_used") == 0
    until(lambda: held(http.pid) <= descriptors)
    assert [c.pid for c in http.children(recursive=True)] == children
    memory = memory_of(http.pid)
    assert memory.http_rest < REST_MB * MB
    on_gpu = "cuda" in server.get("/readyz")[1]
    assert memory.lanes_rest < (LANE_MB + CUDA_MB * on_gpu) * MB


def test_256_mb_go_through_permute_and_back(server: Server) -> None:
    """A copy of them in the HTTP process would be more than it may have."""
    x = np.arange(256 * MB // 8, dtype=np.int64).reshape(1 << 13, 1 << 12)

    with Client(server.url, progress=False) as client:
        there = client.permute(x, dims=(1, 0))
        back = client.permute(there, dims=(1, 0))

    assert there[123, 4567] == x[4567, 123]
    assert np.array_equal(back, x)
    memory = memory_of(server.process.pid)
    assert memory.http_rest < REST_MB * MB
    assert memory.http_arena <= LARGE_ARENA
    assert metric(server, "warpcall_lane_arena_used") == 0
