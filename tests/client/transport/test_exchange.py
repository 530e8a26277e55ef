"""Retries and errors, against a real server that misbehaves on cue."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import (
    OUT,
    Script,
    ScriptedServer,
    Visit,
    X,
    permute,
    permute_large,
    well,
)
from warpcall import AsyncClient, Client, errors
from warpcall.errors import (
    Busy,
    InvalidInput,
    Problem,
    TooLarge,
    TransportError,
    Unavailable,
    WarpcallError,
)


def says(problem: Problem, **headers: str) -> Script:
    def script(visit: Visit) -> None:
        visit.body()
        fields = {"Content-Type": errors.MEDIA_TYPE, "X-Request-Id": "r1", **headers}
        visit.answer(problem.status, json.dumps(problem.to_json()).encode(), fields)

    return script


def leaves(visit: Visit) -> None:
    visit.body()
    raise ConnectionAbortedError


def test_busy_then_well_gives_the_answer_of_the_second_try(flavour: Flavour) -> None:
    with ScriptedServer(says(Busy("full"), **{"Retry-After": "0"}), well) as server:
        (out,) = flavour.ask(server, permute)

        assert len(server.targets) == 2
    np.testing.assert_array_equal(out, X.T)


def test_a_connection_that_breaks_before_the_answer_is_tried_again(flavour: Flavour) -> None:
    with ScriptedServer(leaves, leaves, well) as server:
        (out,) = flavour.ask(server, permute)

        assert len(server.targets) == 3
    np.testing.assert_array_equal(out, X.T)


def test_the_last_error_is_raised_once_the_retries_are_used_up(flavour: Flavour) -> None:
    with ScriptedServer(says(Unavailable("restarting"), **{"Retry-After": "0"})) as server:
        with pytest.raises(Unavailable, match="restarting") as caught:
            flavour.ask(server, permute, retries=2)

        assert len(server.targets) == 3
    assert caught.value.request_id == "r1"
    assert caught.value.retry_after_s == 0


def test_a_wait_beyond_the_timeout_is_not_begun(flavour: Flavour) -> None:
    with ScriptedServer(says(Busy("full"), **{"Retry-After": "3600"})) as server:
        with pytest.raises(Busy):
            flavour.ask(server, permute)

        assert len(server.targets) == 1


KINDS = [kind for kind in Problem.__subclasses__() if kind.__module__ == Problem.__module__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_each_problem_becomes_its_exception_unchanged(kind: type[Problem], direct: Flavour) -> None:
    problem = kind("b must have shape (3, 2), got (2, 3)", field="b", request_id="r7")

    with ScriptedServer(says(problem)) as server, pytest.raises(kind) as caught:
        direct.ask(server, permute, retries=0)

    assert type(caught.value) is kind
    assert caught.value.to_json() == problem.to_json()


def test_a_problem_that_would_stay_is_not_tried_again(flavour: Flavour) -> None:
    with ScriptedServer(says(InvalidInput("no"))) as server:
        with pytest.raises(InvalidInput):
            flavour.ask(server, permute)

        assert len(server.targets) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (502, b"<html>Bad Gateway</html>", Unavailable, "answered 502"),
        (503, b"upstream\nlost", Unavailable, "answered 503: upstream lost"),
        (413, b"", TooLarge, "answered 413"),
        (307, b"", Problem, "answered 307"),
        (500, b"[" * 100_000, WarpcallError, "answered 500: \\[\\["),
        (418, b'"teapot"', Problem, "answered 418"),
    ],
)
def test_an_answer_of_a_proxy_is_an_error_that_says_so(
    status: int, body: bytes, kind: type[Problem], message: str, flavour: Flavour
) -> None:
    def script(visit: Visit) -> None:
        visit.body()
        visit.answer(status, body, {"Content-Type": "application/json"})

    with ScriptedServer(script) as server, pytest.raises(kind, match=message):
        flavour.ask(server, permute, retries=0)


def truncated(visit: Visit) -> None:
    visit.body()
    visit.answer(200, OUT[:-4], {"Content-Length": str(len(OUT))})
    raise ConnectionAbortedError


def cut_short(visit: Visit) -> None:
    visit.body()
    visit.answer(200, OUT[:-4])


def not_tensors(visit: Visit) -> None:
    visit.body()
    visit.answer(200, b"hello, world")


def not_http(visit: Visit) -> None:
    visit.body()
    visit.sock.sendall(b"220 smtp.example.com ready\r\n\r\n")
    raise ConnectionAbortedError


def endless_head(visit: Visit) -> None:
    visit.body()
    visit.sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"x-filler: " + b"y" * 300_000)
    raise ConnectionAbortedError


def absurdly_long(visit: Visit) -> None:
    visit.body()
    visit.answer(200, b"", {"Content-Length": "999999999999999999"})
    raise ConnectionAbortedError


@pytest.mark.parametrize("script", [truncated, cut_short, not_tensors, not_http, absurdly_long])
def test_a_truncated_or_malformed_answer_is_a_transport_error(
    script: Script, flavour: Flavour
) -> None:
    with ScriptedServer(script) as server, pytest.raises(TransportError):
        flavour.ask(server, permute, retries=0)


def test_a_head_without_end_is_not_read_to_its_end(direct: Flavour) -> None:
    with ScriptedServer(endless_head) as server, pytest.raises(TransportError):
        direct.ask(server, permute, retries=0)


def test_a_truncated_answer_is_asked_for_again(flavour: Flavour) -> None:
    with ScriptedServer(truncated, well) as server:
        (out,) = flavour.ask(server, permute)

    np.testing.assert_array_equal(out, X.T)


def refuse(visit: Visit) -> None:
    problem = json.dumps(TooLarge("at most 1 MB").to_json()).encode()
    visit.answer(413, problem, {"Content-Type": errors.MEDIA_TYPE, "Connection": "close"})


def test_a_refusal_before_the_body_is_read_is_seen(flavour: Flavour) -> None:
    def refuse_and_linger(visit: Visit) -> None:
        refuse(visit)
        visit.sock.shutdown(socket.SHUT_WR)
        visit.body()

    with ScriptedServer(refuse_and_linger) as server, pytest.raises(TooLarge, match="1 MB"):
        flavour.ask(server, permute_large, retries=0)


def test_a_refusal_is_seen_though_the_server_hangs_up_at_once(direct: Flavour) -> None:
    def refuse_and_leave(visit: Visit) -> None:
        refuse(visit)
        raise ConnectionAbortedError

    with ScriptedServer(refuse_and_leave) as server, pytest.raises(TooLarge, match="1 MB"):
        direct.ask(server, permute_large, retries=0)


def test_a_refusal_is_seen_while_the_server_neither_reads_nor_hangs_up(direct: Flavour) -> None:
    done = threading.Event()

    def refuse_and_stay(visit: Visit) -> None:
        refuse(visit)
        done.wait(30)

    with ScriptedServer(refuse_and_stay) as server, pytest.raises(TooLarge, match="1 MB"):
        direct.ask(server, permute_large, retries=0)
    done.set()


def test_a_server_that_hangs_up_on_a_large_body_is_a_transport_error(flavour: Flavour) -> None:
    def hang_up(visit: Visit) -> None:
        raise ConnectionAbortedError

    with ScriptedServer(hang_up) as server, pytest.raises(TransportError, match="broke"):
        flavour.ask(server, permute_large, retries=0)


def test_a_server_that_never_answers_is_left_at_the_timeout(flavour: Flavour) -> None:
    done = threading.Event()

    def silence(visit: Visit) -> None:
        done.wait(30)

    with (
        ScriptedServer(silence) as server,
        pytest.raises(TransportError, match="in time"),
    ):
        flavour.ask(server, permute, timeout_s=0.3)
    done.set()


def test_a_server_that_drips_is_left_at_the_timeout(flavour: Flavour) -> None:
    done = threading.Event()

    def drip(visit: Visit) -> None:
        visit.body()
        visit.answer(200, b"", {"Content-Length": "1000000"})
        while not done.wait(0.05):
            visit.sock.sendall(b"x")

    with ScriptedServer(drip) as server, pytest.raises(TransportError, match="in time"):
        flavour.ask(server, permute, timeout_s=0.5)
    done.set()


def test_a_server_that_is_not_there_is_named_to_coroutines_too(unused_port: int) -> None:
    async def run() -> None:
        async with AsyncClient(f"http://127.0.0.1:{unused_port}", retries=0) as gpu:
            await gpu.health()

    with pytest.raises(TransportError, match=f"cannot reach 127.0.0.1:{unused_port}") as caught:
        asyncio.run(run())

    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refused_connection_asks_whether_a_server_runs_there(
    direct: Flavour, scheme: str, unused_port: int
) -> None:
    url = f"{scheme}://127.0.0.1:{unused_port}"

    with pytest.raises(TransportError) as caught:
        direct.ask_url(url, lambda gpu: gpu.health(), retries=0)

    where = f"cannot reach 127.0.0.1:{unused_port}: Connection refused"
    assert str(caught.value) == f"{where}; is a Warpcall server running at {url}?"


def test_a_socket_that_is_not_there_asks_whether_a_server_runs_there(
    direct: Flavour, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/no.sock"

    with pytest.raises(TransportError, match=f"is a Warpcall server running at {url}") as caught:
        direct.ask_url(url, lambda gpu: gpu.health(), retries=0)

    assert "no.sock: No such file or directory" in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_named_without_its_password(
    direct: Flavour, scheme: str, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://ann:secret@127.0.0.1:{unused_port}")
        monkeypatch.setenv(name.lower(), f"http://ann:secret@127.0.0.1:{unused_port}")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")

    with pytest.raises(TransportError, match="cannot reach gpu-box: Connection refused") as caught:
        direct.ask_url(f"{scheme}://gpu-box", lambda gpu: gpu.health(), retries=0)

    proxy = f"http://127.0.0.1:{unused_port}"
    assert f"is the proxy {proxy} (from {scheme}_proxy) running?" in str(caught.value)


def test_a_server_that_is_not_there_is_named(unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"

    with Client(url, retries=1) as gpu, pytest.raises(TransportError, match=str(unused_port)) as e:
        gpu.health()

    assert isinstance(e.value.__cause__, ConnectionRefusedError)
