"""Connections, answers and pauses, against a real server that follows a script."""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.flavours import Flavour
from tests.client.scripted import (
    OUT,
    ScriptedServer,
    Visit,
    X,
    permute,
    well,
)
from warpcall import AsyncClient, Client, InvalidInput
from warpcall._transport.replies import parse_retry_after, parse_server_timing
from warpcall._transport.retries import pause_before_retry
from warpcall._transport.waiters import MAX_CONNECTIONS


def test_a_chunked_answer_is_read(flavour: Flavour) -> None:
    def chunked(visit: Visit) -> None:
        visit.body()
        half = len(OUT) // 2
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (OUT[:half], OUT[half:]))
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        visit.sock.sendall(head + pieces + b"0\r\n\r\n")

    with ScriptedServer(chunked) as server:
        first, second = flavour.ask(server, permute, permute)

    np.testing.assert_array_equal(first, X.T)
    np.testing.assert_array_equal(second, X.T)


def test_a_chunked_answer_may_come_in_drops(flavour: Flavour) -> None:
    def drops(visit: Visit) -> None:
        visit.body()
        visit.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in (OUT[i : i + 1] for i in range(len(OUT))):
            visit.sock.sendall(b"1\r\n" + byte + b"\r\n")
        visit.sock.sendall(b"0\r\n\r\n")

    with ScriptedServer(drops) as server:
        (out,) = flavour.ask(server, permute)

    np.testing.assert_array_equal(out, X.T)


def test_an_answer_may_end_with_its_connection(flavour: Flavour) -> None:
    def old(visit: Visit) -> None:
        visit.body()
        visit.sock.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + OUT)
        raise ConnectionAbortedError

    with ScriptedServer(old) as server:
        first, second = flavour.ask(server, permute, permute)

        assert server.connections == 2
    np.testing.assert_array_equal(first, second)


def test_an_interim_answer_is_passed_over(flavour: Flavour) -> None:
    def hints(visit: Visit) -> None:
        visit.body()
        visit.sock.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        well(visit)

    with ScriptedServer(hints) as server:
        (out,) = flavour.ask(server, permute)

    np.testing.assert_array_equal(out, X.T)


def test_calls_share_a_connection(flavour: Flavour) -> None:
    with ScriptedServer(well) as server:
        flavour.ask(server, permute, permute, permute)

        assert server.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_costs_no_try(direct: Flavour) -> None:
    closed = threading.Event()

    def once(visit: Visit) -> None:
        well(visit)
        closed.set()
        raise ConnectionAbortedError

    def later(gpu: Any) -> Any:
        closed.wait(10)
        threading.Event().wait(0.2)  # let the end of the connection arrive
        return permute(gpu)

    with ScriptedServer(once) as server:
        first, second = direct.ask(server, permute, later, retries=0)

    np.testing.assert_array_equal(first, second)


def test_a_large_body_arrives_whole_and_its_echo_too(flavour: Flavour) -> None:
    x = np.random.default_rng(0).integers(0, 256, 5 << 20, np.uint8)

    def echo(visit: Visit) -> None:
        body = visit.body()
        arrays = safetensors.numpy.load(body)
        visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))

    with ScriptedServer(echo) as server:
        (out,) = flavour.ask(server, lambda gpu: gpu.run("permute", x=x, dims=(0,)))

    np.testing.assert_array_equal(out, x)
    assert out.flags.writeable


def test_threads_share_one_client() -> None:
    def echo(visit: Visit) -> None:
        arrays = safetensors.numpy.load(visit.body())
        visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))

    with (
        ScriptedServer(echo) as server,
        Client(server.url) as gpu,
        ThreadPoolExecutor(8) as pool,
    ):
        outs = list(
            pool.map(lambda i: gpu.run("permute", x=np.full(999, i), dims=(0,)), range(200))
        )

        assert server.connections <= 8
    assert all((out == i).all() for i, out in enumerate(outs))


def test_calls_beyond_the_connections_of_a_client_wait_for_one(direct: Flavour) -> None:
    arrivals = threading.Semaphore(0)
    full = threading.Event()

    def crowd(visit: Visit) -> None:
        arrivals.release()
        assert full.wait(30)
        well(visit)

    def release() -> None:
        for _ in range(MAX_CONNECTIONS):
            arrivals.acquire(timeout=30)
        full.set()

    def many(gpu: Any) -> Any:
        if direct.asynchronous:
            return asyncio.gather(*[permute(gpu) for _ in range(MAX_CONNECTIONS + 8)])
        with ThreadPoolExecutor(MAX_CONNECTIONS + 8) as pool:
            return list(pool.map(lambda _: permute(gpu), range(MAX_CONNECTIONS + 8)))

    threading.Thread(target=release, daemon=True).start()
    with ScriptedServer(crowd) as server:
        (outs,) = direct.ask(server, many)

        assert (len(server.targets), server.connections) == (MAX_CONNECTIONS + 8, MAX_CONNECTIONS)
    assert all((out == X.T).all() for out in outs)


def test_a_cancelled_call_leaves_the_client_usable() -> None:
    arrived = threading.Event()
    done = threading.Event()

    def hang(visit: Visit) -> None:
        arrived.set()
        done.wait(30)
        raise ConnectionAbortedError

    async def run(url: str) -> Any:
        async with AsyncClient(url) as gpu:
            call = asyncio.create_task(permute(gpu))
            await asyncio.to_thread(arrived.wait, 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return await permute(gpu)

    with ScriptedServer(hang, well) as server:
        out = asyncio.run(run(server.url))
    done.set()

    np.testing.assert_array_equal(out, X.T)


def test_a_closed_client_says_so() -> None:
    gpu = Client()
    gpu.close()

    with pytest.raises(RuntimeError, match="closed"):
        gpu.health()


def test_the_answer_tells_device_timing_and_request() -> None:
    with ScriptedServer(well) as server, Client(server.url) as gpu:
        answer = gpu.call("permute", {"x": X}, {"dims": (1, 0)})

    assert list(answer.outputs) == ["out"]
    assert answer.device == "cpu"
    assert answer.timing_ms == {"queue": 0.5}
    assert answer.request_id == ""


@pytest.mark.parametrize(
    ("failures", "asked", "drawn", "pause"),
    [(0, None, 1.0, 0.1), (3, None, 1.0, 0.8), (30, None, 1.0, 8.0), (3, None, 0.0, 0.4)],
)
def test_pauses_double_with_jitter_up_to_a_bound(
    failures: int, asked: float | None, drawn: float, pause: float
) -> None:
    assert pause_before_retry(failures, asked, lambda: drawn) == pytest.approx(pause)


@pytest.mark.parametrize("draw", [lambda: 0.0, lambda: 1.0])
def test_a_pause_is_never_shorter_than_the_server_asked(draw: Callable[[], float]) -> None:
    assert pause_before_retry(0, 2.5, draw) >= 2.5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.25", 0.25),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("-3", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(
    text: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(text) == seconds


def test_a_retry_after_date_to_come_is_the_time_until_then() -> None:
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)

    seconds = parse_retry_after(email.utils.format_datetime(then, usegmt=True))

    assert seconds == pytest.approx(3600, abs=60)


@given(st.text())
@settings(deadline=None)
def test_headers_of_any_text_are_read_or_passed_over(text: str) -> None:
    seconds = parse_retry_after(text)
    stages = parse_server_timing(text)

    assert seconds is None or seconds >= 0
    assert all(isinstance(ms, float) for ms in stages.values())


def test_server_timing_is_read_by_stage() -> None:
    text = 'queue;dur=0.5, kernel;desc="a";dur="2", cache;desc=hit, odd;dur=x'

    assert parse_server_timing(text) == {"queue": 0.5, "kernel": 2.0}


def test_what_is_no_array_is_named_before_kinds_are_compared() -> None:
    mixed: dict[str, Any] = {"a": "1.0", "b": torch.zeros(1)}

    with Client() as gpu, pytest.raises(InvalidInput, match="a must be a numpy array or a torch"):
        gpu.call("transpose-add", mixed)


def test_a_call_without_an_array_is_refused_here() -> None:
    with Client() as gpu, pytest.raises(InvalidInput, match=r"at least one .* got dims"):
        gpu.run("permute", dims=(1, 0))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "\udcff"], ids=ascii)
def test_a_name_that_no_op_has_is_refused_here(name: str) -> None:
    with Client() as gpu, pytest.raises(InvalidInput, match="like masked-softmax") as caught:
        gpu.run(name, x=X)

    assert caught.value.field == "name"
