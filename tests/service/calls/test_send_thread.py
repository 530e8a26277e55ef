"""The thread that writes large responses."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from warpcall_service.calls.send_thread import SendThread


def test_what_the_socket_takes_is_written_and_reported_in_the_event_loop() -> None:
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    data = memoryview(bytes(64 << 20))  # more than the socket takes

    async def write() -> tuple[int, int]:
        found: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        assert SendThread().write(
            ours.fileno(),
            b"head",
            data,
            lambda nbytes: found.set_result((nbytes, threading.get_ident())),
        )
        return await found

    with theirs, ours:
        nbytes, thread = asyncio.run(write())
        ours.close()
        received = theirs.makefile("rb").read()

    assert thread == threading.get_ident()
    assert 0 < nbytes < len(data)
    assert received == b"head" + bytes(nbytes - 4)


def test_a_socket_that_is_closed_meanwhile_is_not_mistaken_for_the_next_one() -> None:
    """The next one gets the same number."""
    theirs, ours = socket.socketpair()
    begun = threading.Event()

    class Waiting(SendThread):
        def _run(self) -> None:
            begun.wait(20)
            super()._run()

    async def write() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        number = ours.fileno()
        assert Waiting().write(number, b"for them ", memoryview(b"only"), found.set_result)
        ours.close()
        other, next_one = socket.socketpair()
        with other, next_one:
            assert number in (other.fileno(), next_one.fileno())
            begun.set()
            nbytes = await found
            other.close()
            assert next_one.recv(100) == b""
        return nbytes

    with theirs:
        assert asyncio.run(write()) == len(b"for them only")
        assert theirs.makefile("rb").read() == b"for them only"


@pytest.mark.parametrize("end", ["closed", "none"])
def test_a_broken_socket_ends_no_thread(end: str) -> None:
    theirs, ours = socket.socketpair()
    theirs.close()

    async def write() -> list[int]:
        thread, loop = SendThread(), asyncio.get_running_loop()
        found = []
        for _ in range(2):
            written: asyncio.Future[int] = loop.create_future()
            fd = ours.fileno() if end == "closed" else -1  # as if no more files could be opened
            if thread.write(fd, b"", memoryview(b"x"), written.set_result):
                found.append(await written)
        return found

    with ours:
        assert asyncio.run(write()) == ([0, 0] if end == "closed" else [])
