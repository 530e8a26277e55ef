"""Attempts to call URLs whose hosts misbehave: they end in time, and delay nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from warpcall_bench.monitors import sender
from warpcall_bench.monitors.deliveries import Attempt
from warpcall_bench.monitors.sender import Sender
from warpcall_bench.monitors.service import MOST_SENDING

NAME = "silent.example"


def attempt(url: str) -> Attempt:
    return Attempt(1, "a" * 32, 1, "b" * 12, url, "secret", b"{}")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Look-ups of NAME are never answered; those that have begun."""
    real, begun, ended = socket.getaddrinfo, list[str](), threading.Event()

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host != NAME or more.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, *rest, **more)
        begun.append(NAME)
        ended.wait(120)
        raise OSError("there was no answer")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield begun
    ended.set()


@pytest.mark.slow
def test_look_ups_that_are_never_answered_delay_nothing_else(silent: list[str]) -> None:
    async def play() -> list[tuple[int | None, str]]:
        sending = Sender({f"https://{NAME}:443"})
        tasks = [
            asyncio.create_task(sending.send(attempt(f"https://{NAME}/")))
            for _ in range(MOST_SENDING)
        ]
        while len(silent) < MOST_SENDING:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):  # what frames, checks and files of jobs use
            await asyncio.gather(*(asyncio.to_thread(time.sleep, 0) for _ in range(100)))
        return list(await asyncio.gather(*tasks))

    found = asyncio.run(play())

    assert found == [(None, "there was no answer within 10 s")] * MOST_SENDING


def test_a_server_that_stops_does_not_wait_for_look_ups(silent: list[str]) -> None:
    async def play() -> None:
        sending = Sender({f"https://{NAME}:443"})
        task = asyncio.create_task(sending.send(attempt(f"https://{NAME}/")))
        while not silent:
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    before_s = time.monotonic()
    asyncio.run(play())

    assert time.monotonic() - before_s < 5


@pytest.mark.parametrize(
    ("first", "more", "status", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 1000, 200, ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 200, ""),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000, None, "buffer too long"),
        (b"HTTP/1.1 200 OK\r\n", b"X: x\r\n", None, "buffer too long"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", None, "no answer within 1 s"),
        (b"HTTP/1.1 2", b"", None, "no answer within 1 s"),
        (b"\0" * 100, b"\0" * 1000, None, "illegal"),
    ],
    ids=["body", "chunks", "header", "headers", "interim", "nothing", "noise"],
)
def test_an_answer_without_end_ends_the_attempt(
    first: bytes, more: bytes, status: int | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_answer, args=(listener, first, more), daemon=True)
        answering.start()
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

        found = asyncio.run(Sender({origin}).send(attempt(f"{origin}/hook")))

        answering.join(10)
    assert found[0] == status
    assert why in found[1].lower()
    assert bool(found[1]) == bool(why)
    assert not answering.is_alive(), "the connection was closed"


def _answer(listener: socket.socket, first: bytes, more: bytes) -> None:
    """Send an answer that has no end, until the client leaves."""
    client, _ = listener.accept()
    with client, contextlib.suppress(OSError):
        client.recv(65536)
        client.sendall(first)
        while more or client.recv(65536):
            client.sendall(more)
