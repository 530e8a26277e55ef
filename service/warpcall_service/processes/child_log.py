"""Adds what a worker or job process writes to its stderr to the log of the server.

The process gets a pipe that the server reads. With the server's own stderr, it would block as soon
as nobody reads that: in its log, but also in a print of a library, a compiler or CUDA.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

from warpcall_service import logs

CHUNK_BYTES = 64 << 10  # read at a time
GATHER_S = 0.05  # before a read: makes a traceback one message, and limits the pipe to 1.3 MB/s
MAX_LINE_BYTES = 64 << 10  # of a line without its end; a longer line is cut into several
MAX_LAST_BYTES = 1 << 20  # read at most after the process has ended
OURS = '{"time": "'  # how the lines of `logs.py` begin

log = logging.getLogger("warpcall.child")


class ChildLog:
    """The server's end of a pipe to which one child process writes its log.

    Args:
        name: of the child, for messages about output that is not from its log.
        max_bytes: of output of a child that runs uploaded code; more is dropped. Its lines could
            claim to be from its log, so none is logged unchanged. None means no limit.

    Attributes:
        fd: the end of the pipe for the child; `started` closes the server's copy of it.
    """

    def __init__(self, name: str, max_bytes: int | None = None) -> None:
        self._name = name
        self._trusted = max_bytes is None
        self._left = max_bytes or 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""
        self._pipe, self.fd = os.pipe()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._on_readable)

    def started(self) -> None:
        """Close the server's copy of `fd`, once the child has started or failed to start."""
        os.close(self.fd)

    def close(self) -> None:
        """Log what is left in the pipe, and close it."""
        self._loop.remove_reader(self._pipe)
        if self._timer is not None:
            self._timer.cancel()
        left = MAX_LAST_BYTES
        while left > 0 and (data := self._read()):
            left -= len(data)
            self._take(data)
        self._take(b"\n" if self._rest else b"")
        os.close(self._pipe)

    def _on_readable(self) -> None:
        self._loop.remove_reader(self._pipe)
        self._timer = self._loop.call_later(GATHER_S, self._read_some)

    def _read_some(self) -> None:
        data = self._read()
        self._take(data or b"")
        if data != b"":
            self._loop.add_reader(self._pipe, self._on_readable)

    def _read(self) -> bytes | None:
        """Read what is in the pipe. Empty bytes mean its end; None means nothing at present."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipe, CHUNK_BYTES)
        return None

    def _take(self, data: bytes) -> None:
        """Log complete lines: those of its log unchanged, all others together as one message."""
        if not self._trusted:
            data = self._within_limit(data)
        text, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            text, newline, self._rest = text + newline + self._rest, b"\n", b""
        if not newline:
            return
        others: list[str] = []
        for line in text.decode(errors="replace").split("\n"):
            if self._trusted and line.startswith(OURS):
                logs.write(line)
            elif line:
                others.append(line)
        if others:
            log.warning("%s wrote: %s", self._name, "\n".join(others))

    def _within_limit(self, data: bytes) -> bytes:
        if len(data) <= self._left or not self._left:
            kept = data[: self._left]
        else:
            kept = data[: self._left] + b"\n(what it writes from now on is dropped)\n"
        self._left -= min(len(data), self._left)
        return kept
