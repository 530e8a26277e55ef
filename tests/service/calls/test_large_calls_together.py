"""Large calls that repeat earlier ones: who sends their responses, and when the event loop sleeps."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.server import Server
from tests.service.calls.large_calls import (
    MIB,
    beside,
    expected_calls,
    is_clean,
    noting_server,
    prepared,
    values,
    written,
)
from tests.service.http.test_quick import is_transposed, lane, request
from tests.service.stopped_lane import stopped_lane
from tests.waiting import until


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


def test_beside_others_a_thread_writes_responses(
    server: Server, begun: list[int], counts: Path
) -> None:
    callers, begun[0] = [prepared(server) for _ in range(4)], 4
    before = len(written(counts))

    with stopped_lane(server):
        for n, caller in enumerate(callers):
            caller.send(values(n))
        until(lambda: lane(server, "in_flight") + lane(server, "queued") == 4)

    assert all(is_transposed(c.receive()[1], values(n)) for n, c in enumerate(callers))
    # The last one may be alone by then.
    until(lambda: len(written(counts)) - before >= 3)
    until(lambda: is_clean(server))


def test_a_response_is_not_freed_while_the_thread_writes_it(
    server: Server, begun: list[int], counts: Path
) -> None:
    """Otherwise its client would get what the next call has written there."""
    callers, begun[0] = [prepared(server) for _ in range(2)], 2
    slow = beside(counts, "slow")

    with stopped_lane(server):
        for n, caller in enumerate(callers):
            caller.send(values(n))
        until(lambda: lane(server, "in_flight") + lane(server, "queued") == 2)
        slow.touch()
    until(lambda: lane(server, "in_flight") == 0)
    used = lane(server, "arena_used")
    callers[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    callers[0].sock.close()  # resets the connection
    until(lambda: json.loads(server.get("/v1/me")[1])["in_flight"]["requests"] == 2)

    assert used > 2 * MIB
    assert lane(server, "arena_used") == used
    slow.unlink()
    until(lambda: is_clean(server))


@pytest.fixture
def gpu(counts: Path) -> Iterator[None]:
    """The lane's calls say that their inputs were copied to a GPU."""
    beside(counts, "gpu").touch()
    yield
    beside(counts, "gpu").unlink()


def awake(counts: Path) -> int:
    """How often a call kept the event loop awake."""
    return beside(counts, "awake").stat().st_size


@pytest.mark.usefixtures("gpu")
def test_while_one_call_is_on_the_lane_of_a_gpu_the_event_loop_stays_awake_for_a_short_time(
    server: Server, begun: list[int], counts: Path
) -> None:
    caller, begun[0] = prepared(server), 2
    caller.call(values(1))  # the first shows that inputs are copied
    before = awake(counts)

    with stopped_lane(server):
        caller.send(values(2))
        until(lambda: lane(server, "in_flight") == 1)
        until(lambda: awake(counts) > before + 1)
        time.sleep(0.1)
        after = awake(counts)
        time.sleep(0.1)
        assert awake(counts) == after, "it sleeps by now"

    assert is_transposed(caller.receive()[1], values(2))


@pytest.mark.usefixtures("gpu")
def test_beside_others_no_call_keeps_the_event_loop_awake(
    server: Server, begun: list[int], counts: Path
) -> None:
    callers, begun[0] = [prepared(server) for _ in range(2)], 4
    for caller in callers:
        caller.call(values(1))

    callers[0].sock.sendall(request(values(2))[:-1000])
    until(lambda: lane(server, "arena_used") > 0)
    before = awake(counts)
    callers[1].call(values(3))
    assert awake(counts) == before + 1, "it is looked at once"
    callers[0].sock.sendall(request(values(2))[-1000:])

    assert is_transposed(callers[0].receive()[1], values(2))


def test_on_a_lane_without_a_gpu_the_event_loop_sleeps(
    server: Server, begun: list[int], counts: Path
) -> None:
    caller, begun[0] = prepared(server), 2
    before = awake(counts)

    for n in range(2):
        assert is_transposed(caller.call(values(n))[1], values(n))

    assert awake(counts) == before
