"""Callers who wait: through a restart of the server, as long as they said, and no longer."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.client.scripted import ScriptedServer, Visit
from tests.e2e.test_survives import LEFT, lane_of, lane_state, metric, until
from tests.servers import Server, running_server
from tests.suspended import suspended
from warpcall import AsyncClient, Busy, CallTimedOut, Client, InvalidInput, Unavailable
from warpcall._transport.retries import RETRIES, Retries
from warpcall.errors import ConnectionFailed

pytestmark = pytest.mark.slow

X = np.arange(12, dtype=np.float32).reshape(3, 4)
AWAY_S = 2.5  # longer than RETRIES tries and their pauses take


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_call_outlasts_a_restart_of_the_server() -> None:
    port = free_port()
    settings, url = {"WARPCALL_PORT": str(port)}, f"http://127.0.0.1:{port}"

    known, away = threading.Event(), threading.Event()

    async def call_twice() -> Any:
        async with AsyncClient(url) as gpu:
            await gpu.permute(X, dims=(1, 0))
            known.set()
            await asyncio.to_thread(away.wait, 60)
            return await gpu.permute(X, dims=(1, 0))

    with ThreadPoolExecutor(2) as pool, Client(url) as gpu:
        with running_server(settings):
            gpu.permute(X, dims=(1, 0))
            awaited = pool.submit(asyncio.run, call_twice())
            assert known.wait(60)
        away.set()
        blocking = pool.submit(gpu.permute, X, dims=(1, 0))
        for call in (blocking, awaited):
            with pytest.raises(TimeoutError):  # neither an answer nor an error
                call.result(AWAY_S)
        with running_server(settings):
            outs = [call.result(60) for call in (blocking, awaited)]

    for out in outs:
        np.testing.assert_array_equal(out, X.T)


def pauses(retries: Retries, *errors: Exception, left_s: float = 100.0) -> list[bool]:
    return [retries.pause_s(error, left_s) is not None for error in errors]


def test_a_server_that_was_never_there_is_given_up_soon() -> None:
    assert pauses(Retries(None, False), *[ConnectionFailed("no")] * 6) == [True] * 4 + [False] * 2


@pytest.mark.parametrize("error", [Busy("full"), Unavailable("lost")])
def test_a_server_that_refuses_is_asked_a_few_times_only(error: Exception) -> None:
    known = Retries(None, True)

    assert pauses(known, *[error] * (RETRIES + 1)) == [True] * RETRIES + [False]


def test_a_server_that_returns_has_all_tries_again() -> None:
    stopping, away = Unavailable("stopping"), ConnectionFailed("refused")

    errors = [*[stopping] * RETRIES, *[away] * 9, *[stopping] * RETRIES, stopping]

    assert pauses(Retries(None, True), *errors) == [True] * (len(errors) - 1) + [False]


def test_a_limit_of_the_user_counts_every_try() -> None:
    errors = [Busy("full"), ConnectionFailed("no"), Busy("full")]

    assert pauses(Retries(2, True), *errors) == [True, True, False]
    assert pauses(Retries(0, True), errors[1]) == [False]
    assert pauses(Retries(None, True), errors[1], left_s=0.01) == [False]


CALLS: dict[str, Callable[[Client, float], object]] = {
    "method": lambda gpu, s: gpu.permute(X, dims=(1, 0), timeout_s=s),
    "call": lambda gpu, s: gpu.call("permute", {"x": X}, {"dims": (1, 0)}, timeout_s=s),
    "run": lambda gpu, s: gpu.run("permute", x=X, dims=(1, 0), timeout_s=s),
    "put": lambda gpu, s: gpu.put(X, timeout_s=s),
    "stored": lambda gpu, s: gpu.stored.permute(X, dims=(1, 0), timeout_s=s),
    "program": lambda gpu, s: gpu.program().run(timeout_s=s),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_can_have_a_time_of_its_own(name: str) -> None:
    def never(visit: Visit) -> None:
        visit.sock.recv(1 << 20)
        visit.sock.recv(1)

    with ScriptedServer(never) as server, Client(server.url, timeout_s=1000) as gpu:
        with pytest.raises(CallTimedOut):
            CALLS[name](gpu, 0.3)
        with pytest.raises(InvalidInput, match="timeout_s must be above 0"):
            CALLS[name](gpu, 0.0)


def test_tasks_that_are_cancelled_end_their_calls_on_the_server(server: Server) -> None:
    async def cancel_twenty() -> None:
        async with AsyncClient(server.url) as gpu:
            await gpu.permute(X, dims=(1, 0))
            with suspended(lane_of(server)):
                calls = [asyncio.create_task(gpu.permute(X, dims=(1, 0))) for _ in range(20)]
                await asyncio.to_thread(until, lambda: waiting(server) == 20)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                # Each connection has its own timer until the server takes its client for gone. If
                # the lane goes on before the last of them, it answers calls that it has already.
                await asyncio.to_thread(until, lambda: metric(server, LEFT) == left + 20)
                assert lane_state(server)["queued"] == 0

    left = metric(server, LEFT)

    asyncio.run(cancel_twenty())


def test_ctrl_c_ends_a_call_on_the_server(server: Server) -> None:
    program = (
        "import numpy, warpcall\n"
        f"gpu = warpcall.Client({server.url!r})\n"
        "gpu.permute(numpy.zeros((2, 3)), dims=(1, 0))\n"
    )
    with Client(server.url) as gpu:
        gpu.permute(np.zeros((2, 3)), dims=(1, 0))  # the plan is known: the call gets to the lane
    left = metric(server, LEFT)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        with suspended(lane_of(server)):
            until(lambda: waiting(server) == 1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
            until(lambda: metric(server, LEFT) == left + 1)

    assert said.rstrip().endswith("KeyboardInterrupt")


def waiting(server: Server) -> int:
    """Calls that the server has and that have no answer yet."""
    lane = lane_state(server)
    return int(lane["queued"] + lane["in_flight"])
