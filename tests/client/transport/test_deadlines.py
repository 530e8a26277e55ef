"""Every exchange ends within its timeout, and within bounded memory, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.endless import CHUNKED, TIMEOUT_S, Endless, SlowReader
from tests.client.flavours import Flavour
from tests.client.scripted import (
    ScriptedServer,
    Visit,
    permute,
    permute_large,
    well,
)
from warpcall import AsyncClient, Client, TransportError
from warpcall._transport import base, connect
from warpcall._transport.parser import MAX_INTERIM

pytestmark = pytest.mark.slow

HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
PROBLEM = b"HTTP/1.1 422 No\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("first", "again", "pause_s"),
    [
        pytest.param(b"HTTP/1.1 200 ", b"O", 0.05, id="status-line-drips"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx-filler: ", b"y", 0.05, id="header-drips"),
        pytest.param(b"", HINT, 0.05, id="interim-answers"),
        pytest.param(CHUNKED, b"1\r\nx\r\n", 0.05, id="chunks-drip"),
        pytest.param(CHUNKED, b"1\r\nx\r\n" * 1000, 0, id="chunks-flood"),
        pytest.param(CHUNKED + b"5;", b"y", 0.05, id="chunk-header-drips"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", b"x", 0.05, id="until-close-drips"),
        pytest.param(PROBLEM + b"\r\n", b"x", 0.05, id="problem-drips"),
    ],
)
def test_an_answer_without_end_is_left_at_the_timeout(
    first: bytes, again: bytes, pause_s: float, flavour: Flavour
) -> None:
    endless = Endless(first, again, pause_s)

    with ScriptedServer(endless) as server:
        with pytest.raises(TransportError, match="did not answer in time"):
            flavour.ask(server, permute, timeout_s=TIMEOUT_S)

        assert not endless.outlasted.is_set()
        assert len(server.targets) == 1


def test_interim_answers_are_bounded_in_number(direct: Flavour) -> None:
    def hints(visit: Visit) -> None:
        visit.body()
        visit.sock.sendall(HINT * (MAX_INTERIM + 1))
        well(visit)

    with ScriptedServer(hints) as server, pytest.raises(TransportError, match="interim answers"):
        direct.ask(server, permute, retries=0)


def test_a_body_that_the_server_reads_slowly_is_left_at_the_timeout(flavour: Flavour) -> None:
    slow = SlowReader()

    with ScriptedServer(slow) as server:
        with pytest.raises(TransportError, match="did not answer in time"):
            flavour.ask(server, permute_large, timeout_s=TIMEOUT_S)

        assert not slow.outlasted.is_set()


def test_a_kept_connection_has_the_timeout_of_each_call(flavour: Flavour) -> None:
    endless = Endless(b"HTTP/1.1 200 OK\r\nx-filler: ", b"y")

    with ScriptedServer(well, endless) as server:
        with pytest.raises(TransportError, match="did not answer in time"):
            flavour.ask(server, permute, permute, timeout_s=4.0)

        assert server.connections == 1


@pytest.fixture
def silent_endpoint() -> Iterator[connect.Endpoint]:
    """An endpoint that never completes a connection, because its backlog is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield connect.Endpoint(socket.AF_INET, listener.getsockname())


def resolves_to(monkeypatch: pytest.MonkeyPatch, *endpoints: connect.Endpoint) -> None:
    found = [(e.family, socket.SOCK_STREAM, 0, "", e.where) for e in endpoints]

    def getaddrinfo(host: object, *args: object, flags: int = 0, **kwargs: object) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        return found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_addresses_that_do_not_answer_are_left_at_the_timeout(
    direct: Flavour, silent_endpoint: connect.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, *[silent_endpoint] * 64)
    attempts: list[float] = []
    share_s = connect.share_s

    def counted(deadline: float, endpoints: int) -> float:
        attempts.append(share_s(deadline, endpoints))
        return attempts[-1]

    monkeypatch.setattr("warpcall._transport.connect.share_s", counted)

    with ScriptedServer(well) as server, pytest.raises(TransportError, match="in time"):
        direct.ask(server, permute, timeout_s=TIMEOUT_S, retries=0)

    assert attempts
    assert sum(attempts) <= TIMEOUT_S * 1.1


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    direct: Flavour, silent_endpoint: connect.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(well) as server:
        there = connect.Endpoint(socket.AF_INET, ("127.0.0.1", server.port))
        resolves_to(monkeypatch, silent_endpoint, there)

        (out,) = direct.ask(server, permute, timeout_s=4.0)

    assert out.shape == (3, 2)


def test_a_resolver_that_stands_still_is_left_at_the_timeout(
    direct: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, done = threading.Event(), threading.Event()

    def getaddrinfo(*args: object, flags: int = 0, **kwargs: object) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        asked.set()
        done.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with ScriptedServer(well) as server:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        with pytest.raises(TransportError, match="in time"):
            direct.ask(server, permute, timeout_s=TIMEOUT_S)

    assert asked.is_set()
    assert not done.is_set()
    done.set()


def test_a_name_that_no_host_can_have_is_a_transport_error() -> None:
    with Client(f"http://{'a' * 80}", retries=0) as gpu, pytest.raises(TransportError):
        gpu.health()


def test_over_a_unix_socket_the_timeout_holds_too(tmp_path: Any) -> None:
    path = tmp_path / "warpcall.sock"
    endless = Endless(b"", HINT)

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            sock, _ = listener.accept()
            sock.recv(1 << 16)
            endless.send_to(sock)
            sock.close()

    async def ask_async() -> None:
        async with AsyncClient(f"unix://{path}", timeout_s=TIMEOUT_S) as gpu:
            await gpu.health()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with (
            Client(f"unix://{path}", timeout_s=TIMEOUT_S) as gpu,
            pytest.raises(TransportError, match="in time"),
        ):
            gpu.health()
        with pytest.raises(TransportError, match="in time"):
            asyncio.run(ask_async())

    assert not endless.outlasted.is_set()


def flood(visit: Visit, head: bytes, piece: bytes, nbytes: int) -> None:
    visit.body()
    visit.sock.sendall(head)
    for _ in range(nbytes // len(piece)):
        visit.sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    visit.sock.sendall(b"0\r\n\r\n")


def test_an_answer_without_a_length_is_read_up_to_a_bound(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_BODY_BYTES", 1 << 20)

    def floods(visit: Visit) -> None:
        flood(visit, CHUNKED, bytes(1 << 16), 1 << 24)

    with (
        ScriptedServer(floods) as server,
        pytest.raises(TransportError, match="at most 1048576 bytes"),
    ):
        flavour.ask(server, permute)


def test_small_chunks_take_no_more_memory_than_their_bytes() -> None:
    gathered = base.Gathered(1 << 20)
    for _ in range(1 << 18):
        gathered.add(b"ab")

    assert gathered.whole().nbytes == 1 << 19
    with pytest.raises(TransportError, match="at most 1048576 bytes"):
        gathered.add(bytes(1 << 20))


@pytest.mark.parametrize("announced", [True, False])
def test_a_problem_is_read_up_to_a_bound(announced: bool, flavour: Flavour) -> None:
    def floods(visit: Visit) -> None:
        if announced:
            head = PROBLEM + b"Content-Length: 1048577\r\n\r\n"
            visit.body()
            visit.sock.sendall(head)
        else:
            flood(visit, PROBLEM + b"Transfer-Encoding: chunked\r\n\r\n", bytes(1 << 16), 1 << 22)

    with (
        ScriptedServer(floods) as server,
        pytest.raises(TransportError, match="at most 1048576 bytes"),
    ):
        flavour.ask(server, permute)


def test_json_of_an_absurd_announced_length_is_refused(flavour: Flavour) -> None:
    def lies(visit: Visit) -> None:
        visit.answer(200, b"{}", {"Content-Length": str(1 << 40)})

    with ScriptedServer(lies) as server, pytest.raises(TransportError, match="at most 268435456"):
        flavour.ask(server, lambda gpu: gpu.health())


@pytest.mark.parametrize("question", ["health", "tensors", "kernels"])
def test_json_nested_too_deeply_is_a_transport_error(question: str, flavour: Flavour) -> None:
    def nests(visit: Visit) -> None:
        visit.answer(200, b"[" * 100_000, {"Content-Type": "application/json"})

    with ScriptedServer(nests) as server, pytest.raises(TransportError, match="JSON"):
        flavour.ask(server, lambda gpu: getattr(gpu, question)())
