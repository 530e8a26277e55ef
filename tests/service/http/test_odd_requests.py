"""Thousands of odd requests on sockets: each is answered or dropped, and the server is healthy.

    pytest tests/service/http/test_odd_requests.py --fuzz-requests 1000000 --fuzz-seed anything

runs longer, or others. A failure names the seed of its connection; `attempt(seed)` makes it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator

import httpx
import psutil
import pytest

from bench.descriptors import held
from bench.machine import memory_of
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.http.odd_requests import FRAMINGS, SOME_KEY, attempt, smuggling
from tests.service.requests import log_of, metrics, well

pytestmark = pytest.mark.slow

CONNECTIONS = 64  # at the same time
QUIET_S = 0.05  # without a response, before the client closes its sending side
HANGS_S = 30.0
WARM_UP = 500  # requests before memory is first measured
MAX_GROWTH_BYTES = 48 << 20
HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [\w -]+\r\n((?:[\w-]+: [^\r\n\0]*\r\n)*)\r\n")
LENGTH = re.compile(rb"^content-length: (\d+)\r$", re.MULTILINE | re.IGNORECASE)


@pytest.fixture(scope="module", params=["without keys", "with keys"])
def serving(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    """A server, and an administrator's key if it needs keys."""
    settings, key = {"WARPCALL_ARENA_BYTES": "128MiB"}, ""
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        if request.param == "with keys":
            database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
            settings |= database.settings
            key = database.key("someone", "admin")
        with running_server(settings) as running:
            yield running, key


async def exchange(port: int, data: bytes) -> tuple[bytes, bool]:
    """The response, and whether the client had to close its sending side to get one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    came, ended = bytearray(), False
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            while True:
                try:
                    async with asyncio.timeout(HANGS_S if ended else QUIET_S):
                        part = await reader.read(1 << 16)
                except TimeoutError:
                    assert not ended, "the server neither answers nor closes"
                    ended = True
                    with contextlib.suppress(
                        OSError
                    ):  # the server reset the connection at this moment
                        writer.write_eof()
                    continue
                if not part:
                    break
                came += part
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return bytes(came), ended


def answers(data: bytes, cut: bool) -> Iterator[tuple[int, bytes, bytes]]:
    """The status, head and body of each response. Fails on anything else.

    Args:
        cut: the last one may be incomplete.
    """
    at = 0
    while at < len(data):
        head = HEAD.match(data, at)
        if head is None:
            assert cut, f"this is no answer: {data[at : at + 200]!r}"
            return
        at = head.end()
        status = int(head[1])
        length = LENGTH.search(head[2])
        nbytes = int(length[1]) if length else 0
        if status == 100 or data.startswith(b"HTTP/1.1 ", at):  # to HEAD
            nbytes = 0
        body = data[at : at + nbytes]
        yield status, head[2], body
        at += len(body)


def wrong(data: bytes, came: bytes, cut: bool) -> str:
    """What is wrong with these responses to `data`; empty if nothing is."""
    try:
        for status, head, body in answers(came, cut):
            if status >= 400 and body:
                members = json.loads(body)
                if members.keys() == {"error"}:  # under /v2
                    assert b"content-type: application/json" in head, head
                else:
                    assert members["type"].startswith("urn:warpcall:problem:")
                    assert b"application/problem+json" in head, head
            impatient = status == 504 and b"x-warpcall-timeout" in data.lower()
            if status >= 500 and status != 503 and not impatient:
                return f"{status} {body!r}"
    except (AssertionError, ValueError, KeyError) as error:
        return repr(error)
    return ""


async def send(port: int, seed: str, requests: int, key: str) -> tuple[Counter[int], list[str]]:
    """Send requests on many connections; return how often each status came, and the faults."""
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    numbers = iter(range(requests))
    left = requests

    async def client() -> None:
        nonlocal left
        for number in numbers:
            if left <= 0 or len(faults) > 10:
                return
            name = f"{seed}:{number}"
            count, data = attempt(name)
            data = data.replace(SOME_KEY, key.encode() or SOME_KEY)
            left -= count
            try:
                came, cut = await exchange(port, data)
            except (AssertionError, OSError) as error:
                faults.append(f"{name}: {error!r}")
                continue
            if fault := wrong(data, came, cut):
                faults.append(f"{name}: {fault}")
            statuses.update(map(int, re.findall(rb"HTTP/1\.1 (\d{3}) ", came)))

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(client())
    return statuses, faults


def test_whatever_comes_the_server_answers_and_stays_as_it_was(
    serving: tuple[Server, str], pytestconfig: pytest.Config
) -> None:
    server, key = serving
    # Each server gets its half of the requests.
    requests = pytestconfig.getoption("--fuzz-requests") // 2
    seed = pytestconfig.getoption("--fuzz-seed") + (":key" if key else "")
    process = psutil.Process(server.process.pid)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=server.url, timeout=30, headers=headers) as http:
        assert well(http).status_code == 200
        asyncio.run(send(server.port, f"{seed}:warm", WARM_UP, key))
        memory, descriptors = memory_of(process.pid), held(process.pid)
        lanes = [child.pid for child in process.children()]

        statuses, faults = asyncio.run(send(server.port, seed, requests, key))

        assert faults == []
        assert {200, 400, 404, 405, 415, 422, 431} <= statuses.keys(), statuses
        assert (401 in statuses) is bool(key)
        assert well(http).status_code == 200
        state = metrics(http)
    assert state['warpcall_lane_arena_used{lane="cpu"}'] == 0
    assert state['warpcall_lane_arena_waiting{lane="cpu"}'] == 0
    assert state['warpcall_lane_restarts_total{lane="cpu"}'] == 0
    assert [child.pid for child in process.children()] == lanes
    assert held(process.pid) <= descriptors
    now = memory_of(process.pid)
    assert now.http_rest - memory.http_rest < MAX_GROWTH_BYTES
    assert now.lanes_rest - memory.lanes_rest < MAX_GROWTH_BYTES
    log = log_of(server)
    assert "Traceback" not in log
    assert '"level":"error"' not in log.lower().replace(" ", "")


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("body", [b"", b"0\r\n\r\n"], ids=["bare", "chunk"])
def test_a_framing_that_others_read_differently_is_refused_with_all_behind_it(
    framing: str, body: bytes, serving: tuple[Server, str]
) -> None:
    server, _ = serving
    came, _ = asyncio.run(exchange(server.port, smuggling(framing, body)))

    statuses = [status for status, _, _ in answers(came, cut=False)]
    assert statuses in ([400], [])
    assert b"hidden" not in came
