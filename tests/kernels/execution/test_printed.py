"""What is kept of what a process with uploaded code prints."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from warpcall_kernels.execution import frames
from warpcall_kernels.execution.printed import (
    HEAD_BYTES,
    LATER,
    TAIL_BYTES,
    Kept,
    Printed,
    printed_by,
)


class Pipe:
    """A process's ends: of a pipe to print to, and of a connection."""

    def __init__(self, printed: Printed, opened: ExitStack) -> None:
        reading, self.fd = os.pipe()
        opened.callback(os.close, self.fd)
        os.set_blocking(reading, False)
        self.ours, self.theirs = map(opened.enter_context, socket.socketpair())
        printed.open(open(reading, "rb", buffering=0), self.ours)  # noqa: PTH123, SIM115
        opened.callback(printed.close)


@pytest.fixture
def printed() -> Printed:
    return Printed()


@pytest.fixture
def pipe(printed: Printed) -> Iterator[Pipe]:
    with ExitStack() as opened:
        yield Pipe(printed, opened)


def kept(data: bytes) -> Kept:
    found = Kept()
    for begin in range(0, len(data), 1000):
        found.add(data[begin : begin + 1000])
    return found


def test_the_begin_and_the_end_of_a_long_text_are_kept() -> None:
    data = b"".join(b"%07d\n" % number for number in range(20_000))

    text = kept(data).text()

    cut = f"\n({len(data) - HEAD_BYTES - TAIL_BYTES} bytes are left out)\n"
    assert text == data[:HEAD_BYTES].decode() + cut + data[-TAIL_BYTES:].decode()


def test_a_text_of_64_kib_is_kept_as_it_is() -> None:
    data = bytes(range(32, 127)) * 1000

    assert kept(data[: HEAD_BYTES + TAIL_BYTES]).text() == data[: HEAD_BYTES + TAIL_BYTES].decode()


def test_control_characters_and_invalid_utf_8_are_replaced() -> None:
    data = "red \x1b[31m, \x9b2J, \u202eback, a\tb\r\nbell\a é".encode() + b" \xff\xc3"

    assert kept(data).text() == (
        "red \ufffd[31m, \ufffd2J, \ufffdback, a\tb\nbell\ufffd é \ufffd\ufffd"
    )


def test_a_failure_after_the_first_call_adds_the_end_of_what_came_later() -> None:
    later = kept(b"x" * 100_000 + b"the end")

    assert printed_by("first", later, failed=False) == "first"
    text = printed_by("first", later, failed=True)
    assert text.startswith(f"first{LATER}xxx")
    assert text.endswith("the end")
    assert len(text) == len(f"first{LATER}") + TAIL_BYTES
    assert printed_by(None, kept(b"only"), failed=True) == "only"
    assert printed_by("first", kept(b""), failed=True) == "first"


def test_a_process_that_prints_without_end_is_read_until_it_answers(
    printed: Printed, pipe: Pipe
) -> None:
    def answer() -> None:
        for _ in range(64):
            os.write(pipe.fd, b"y" * (64 << 10))  # blocks unless it is read
        os.write(pipe.fd, b"last words")
        frames.send(pipe.theirs, {"number": 1})

    thread = threading.Thread(target=answer)
    thread.start()
    found = frames.receive(pipe.ours, 30.0, printed)
    thread.join()

    assert found == {"number": 1}
    text = printed.take().text()
    assert text.endswith("ylast words")
    assert len(text) < HEAD_BYTES + TAIL_BYTES + 100


def test_a_process_that_only_prints_is_too_late_in_time(printed: Printed, pipe: Pipe) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            os.write(pipe.fd, b"y" * 1000)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with pytest.raises(frames.TooLate):
            frames.receive(pipe.ours, 0.2, printed)
    finally:
        stop.set()
        printed.take()  # it may wait for a reader
        thread.join()


def test_a_process_may_close_what_it_prints_to(printed: Printed, pipe: Pipe) -> None:
    os.write(pipe.fd, b"closed from now on")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, pipe.fd)
    os.close(null)
    frames.send(pipe.theirs, {"number": 1})

    assert frames.receive(pipe.ours, 5.0, printed) == {"number": 1}
    assert printed.take().text() == "closed from now on"
    assert printed.wait(pipe.ours, 0.0), "nothing but the connection is waited for"


def test_a_case_begins_with_the_import_or_with_nothing(printed: Printed, pipe: Pipe) -> None:
    os.write(pipe.fd, b"import")
    printed.begin_case()
    os.write(pipe.fd, b", first call")
    assert printed.take().text() == "import, first call"

    os.write(pipe.fd, b"a timed call")
    printed.begin_case()
    assert printed.take().text() == ""
