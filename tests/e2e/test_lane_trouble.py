"""A lane that stands still, and a server without descriptors: the server notices, reports and
repairs both.
"""

from __future__ import annotations

import resource
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from bench.descriptors import held
from tests.e2e.test_survives import (
    IDENTITY,
    SMALL,
    X,
    lane_of,
    metric,
    raw,
    transposed,
)
from tests.servers import Server, running_server
from tests.service.job_requests import JOB
from tests.service.requests import log_of
from tests.suspended import suspended
from tests.waiting import lives
from tests.waiting import until_lasting as until
from warpcall import Client

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("caller", ["a call", "a job", "a client that left"])
def test_a_lane_that_stands_still_is_replaced_although_no_call_reaches_it(
    caller: str,
) -> None:
    """Each of these needs an answer of the lane's planning thread before a call can be sent."""
    settings = {**SMALL, "WARPCALL_CALL_TIMEOUT_S": "3", "WARPCALL_GRACE_S": "1"}
    with (
        running_server(settings) as stuck,
        httpx.Client(base_url=stuck.url, timeout=60) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        lane = lane_of(stuck)
        with suspended(lane):
            if caller == "a client that left":
                with socket.create_connection(("127.0.0.1", stuck.port)) as sock:
                    sock.sendall(raw(IDENTITY))
                    until(lambda: metric(stuck, "warpcall_lane_plan_requests") == 1)
            else:
                path = "/v1/kernels/permute" if caller == "a call" else "/v1/jobs/preview"
                asked = pool.submit(http.post, path, json=IDENTITY if caller == "a call" else JOB)
                assert asked.result().status_code == 504
            until(lambda: not lives(lane))

        until(lambda: metric(stuck, "warpcall_lane_restarts_total") > 0)
        until(lambda: http.post("/v1/kernels/permute", json=IDENTITY).status_code == 200)
        said = log_of(stuck)

    assert (
        "is killed: its planning thread did not answer a request within 3 s, nor 1 s later" in said
    )


def test_a_server_without_descriptors_says_why_its_lane_is_away_and_gets_it_back() -> None:
    settings = {**SMALL, "WARPCALL_RETRY_PAUSE_S": "0.5"}
    limit = resource.RLIMIT_NOFILE
    with running_server(settings) as short, Client(short.url, retries=0) as client:
        pid = short.process.pid
        soft, hard = resource.prlimit(pid, limit)
        # This client connects beforehand, and stays connected.
        stay = httpx.Limits(keepalive_expiry=None)
        with httpx.Client(base_url=short.url, timeout=60, limits=stay) as http:
            http.get("/healthz")
            before = held(pid)
            resource.prlimit(pid, limit, (0, hard))
            lane_of(short).kill()
            until(lambda: http.get("/readyz").json()["lanes"][0]["restarts"] > 2)
            lane = http.get("/readyz").json()["lanes"][0]
            answers = [http.post(path, json=JOB) for path in ("/v1/jobs", "/v1/jobs/preview")]
            call = http.post("/v1/kernels/permute", json=IDENTITY)
            resource.prlimit(pid, limit, (soft, hard))

            until(lambda: http.get("/readyz").status_code == 200)
            assert np.array_equal(transposed(client), X.T)
            assert http.post("/v1/jobs/preview", json=JOB).status_code == 200
            after = held(pid)
        said = log_of(short)

    assert lane["reason"].endswith("its process cannot be started: [Errno 24] Too many open files")
    assert [answer.json()["type"] for answer in (*answers, call)] == [
        "urn:warpcall:problem:unavailable"
    ] * 3
    assert "was lost: its process cannot be started" in said
    assert "Traceback" not in said
    assert after - before == Counter({"socket": 1}), "the connection of the other client"


def test_idle_connections_leave_the_descriptors_that_the_server_itself_needs() -> None:
    """With 160 descriptors half of them are for connections, and the lane can be replaced."""
    few = ("prlimit", "--nofile=160:160")
    stay = httpx.Limits(keepalive_expiry=None)
    with (
        running_server(SMALL, few) as short,
        httpx.Client(base_url=short.url, timeout=60, limits=stay) as http,
        ExitStack() as stack,
    ):
        http.get("/healthz")
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", short.port)))
            for _ in range(200)
        ]
        until(lambda: sum(map(closed, sockets)) == 121)
        lane = lane_of(short)
        lane.kill()
        until(lambda: http.get("/readyz").json()["lanes"][0]["restarts"] == 1)
        until(lambda: http.get("/readyz").status_code == 200)
        job = http.post("/v1/jobs", json=JOB)

        stack.close()
        until(lambda: answers(short) and "more of them are served again" in short.log.read_text())
        said = log_of(short)

    assert job.status_code == 201
    assert said.count("80 connections are open, more of them are closed at once") == 1
    assert "Traceback" not in said


def closed(sock: socket.socket) -> bool:
    """Whether the server has closed this connection, on which it sent nothing."""
    sock.setblocking(False)
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def answers(server: Server) -> bool:
    """Whether a new connection is served."""
    try:
        return server.get("/healthz")[0] == 200
    except OSError:
        return False
