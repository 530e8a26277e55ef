"""Messages to and from a process with uploaded code, whatever it writes to its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from warpcall_kernels.execution import frames
from warpcall_kernels.execution.frames import LENGTH, MOST_BYTES, Ended, TooLate

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_message_arrives_as_it_was_sent(pair: Pair) -> None:
    ours, theirs = pair
    frames.send(theirs, {"do": "ping", "numbers": [1, 2.5, None]})

    assert frames.receive(ours, 5) == {"do": "ping", "numbers": [1, 2.5, None]}


@pytest.mark.parametrize(
    "text",
    [
        LENGTH.pack(MOST_BYTES + 1),
        LENGTH.pack(3) + b"{]}",
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(1) + b"1",
        LENGTH.pack(2) + b"\xff\xfe",
        LENGTH.pack(200_000) + b"[" * 200_000,
        LENGTH.pack(0),
    ],
    ids=["too long", "no JSON", "a list", "a number", "no text", "too deep", "empty"],
)
def test_what_is_no_message_ends_the_connection(text: bytes, pair: Pair) -> None:
    ours, theirs = pair
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.sendall(text)

    with pytest.raises(Ended):
        frames.receive(ours, 5)


@pytest.mark.parametrize("part", [b"", b"\x05", LENGTH.pack(10), LENGTH.pack(10) + b'{"a"'])
def test_a_message_that_breaks_off_ends_the_connection(part: bytes, pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(part)
    theirs.close()

    with pytest.raises(Ended):
        frames.receive(ours)


@pytest.mark.parametrize("part", [b"", b"\x05", LENGTH.pack(10) + b'{"a"'])
def test_a_message_that_does_not_come_in_time_is_too_late(part: bytes, pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(part)
    begin = time.monotonic()

    with pytest.raises(TooLate):
        frames.receive(ours, 0.05)

    assert time.monotonic() - begin >= 0.05
    assert ours.gettimeout() is None, "other uses of the socket have no limit"


def test_no_time_left_is_too_late_even_if_a_message_is_there(pair: Pair) -> None:
    ours, theirs = pair
    frames.send(theirs, {})

    with pytest.raises(TooLate):
        frames.receive(ours, 0)


def test_a_message_to_nobody_ends_the_connection(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()

    with pytest.raises(Ended):
        frames.send(ours, {"do": "ping"})
