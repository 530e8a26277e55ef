"""Large calls that repeat earlier ones: who sends their responses while several are under way."""

from __future__ import annotations

import json
import socket
import struct
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
from tests.service.http.test_quick import is_transposed, lane
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


@pytest.mark.slow
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
    by_thread, begun[0] = len(written(counts)), 5
    assert is_transposed(callers[0].call(values(5))[1], values(5))
    assert len(written(counts)) == by_thread, "a call alone is written by the event loop"


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
