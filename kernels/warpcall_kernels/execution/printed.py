"""What a process with uploaded code prints: its standard output and its standard error, from a pipe.

The process that measures reads the pipe, and only while it waits for an answer of that process. So a
process that prints without end does not wait for a reader, and takes no time from others: it stands
still while others are timed. What is kept is bounded, whatever it prints.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import BinaryIO

HEAD_BYTES = 48 << 10  # kept of the beginning of what a process prints until its first call returns
TAIL_BYTES = 16 << 10  # kept of the end, and as much of what follows if a later call fails
READ_BYTES = 64 << 10  # at a time
MOST_AT_ONCE = 1 << 20  # read without a pause, of a process that goes on printing
LATER = "\n(printed by later calls)\n"


class Kept:
    """The beginning and the end of a stream of bytes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Append to the stream."""
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if (more := len(self._tail) - TAIL_BYTES) > 0:
            del self._tail[:more]
            self._left_out += more

    def text(self) -> str:
        """What is kept, as text that no reader's program acts on."""
        if not self._left_out:
            return _harmless(self._head + self._tail)
        cut = f"\n({self._left_out} bytes are left out)\n"
        return f"{_harmless(self._head)}{cut}{_harmless(self._tail)}"

    def end(self) -> str:
        """The last TAIL_BYTES, as such text."""
        return _harmless((self._head + self._tail)[-TAIL_BYTES:])


class Printed:
    """What one process prints, in the order in which it arrives."""

    def __init__(self) -> None:
        self._pipe: BinaryIO | None = None
        self._poll = select.poll()
        self._kept = Kept()
        self._is_of_import = False

    def open(self, pipe: BinaryIO | None, sock: socket.socket) -> None:
        """Read from the pipe of a new process.

        Args:
            pipe: its end for reading, which does not block; None if nobody has what it prints.
            sock: the connection to the process.
        """
        self._pipe, self._poll = pipe, select.poll()
        self._kept = Kept()
        self._is_of_import = True
        if pipe is not None:
            self._poll.register(sock, select.POLLIN)
            self._poll.register(pipe, select.POLLIN)

    def close(self) -> None:
        """Read what is left of a process that has ended."""
        if self._pipe is not None:
            self._read(MOST_AT_ONCE)
            self._close()

    def begin_case(self) -> None:
        """Forget what calls of the case before have printed, but not what the import has."""
        if not self._is_of_import:
            self.take()
        self._is_of_import = False

    def take(self) -> Kept:
        """What was printed since this was called last."""
        self._read(MOST_AT_ONCE)
        kept, self._kept = self._kept, Kept()
        return kept

    def wait(self, sock: socket.socket, left_s: float | None) -> bool:
        """Wait until the connection can be read, something was printed, or the time is over.

        Args:
            sock: the connection of `open`.
            left_s: seconds; None means any time.

        Returns:
            Whether the connection can be read. A process without a pipe is not waited for.
        """
        if self._pipe is None:
            return True
        ready = {fd for fd, _ in self._poll.poll(None if left_s is None else 1000 * left_s)}
        if sock.fileno() in ready:
            return True
        self._read(READ_BYTES)
        return False

    def _read(self, most: int) -> None:
        while self._pipe is not None and most > 0:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._pipe.fileno(), READ_BYTES)
                self._kept.add(data)
                most -= len(data)
                if not data:
                    self._close()
                continue
            return

    def _close(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._pipe)
            self._pipe.close()
            self._pipe = None


def printed_by(first: str | None, after: Kept, *, failed: bool) -> str:
    """What is shown of an implementation in a case.

    Args:
        first: printed until its first call returned; None if it has not returned.
        after: printed after that.
        failed: whether the implementation has no valid result.
    """
    if first is None:
        return after.text()
    later = after.end() if failed else ""
    return f"{first}{LATER}{later}" if later else first


def _harmless(data: bytearray) -> str:
    """Text with line ends and tabs, and without other control characters and invalid UTF-8."""
    text = data.decode(errors="replace").replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
