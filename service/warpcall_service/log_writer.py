"""Writes lines to a file descriptor from a thread, so that only this thread can block.

A write to a pipe that nobody reads, or to a paused terminal, blocks for as long as that lasts.
Up to MAX_LINES lines wait for the thread. Further lines are dropped and counted.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

MAX_LINES = 8192  # waiting lines: 2 s of access lines at 4,000 calls/s, some 3 MB
MAX_BATCH = 512  # lines in one write
GATHER_S = 0.05  # from the first line of a batch to its write: one wake-up serves many lines


class LogWriter:
    """A bounded queue of lines and the thread that writes them.

    The queue is a SimpleQueue because its `put` may be interrupted by another `put` of the same
    thread: a finalizer or a signal handler may log at any moment. With a lock this would deadlock.

    Args:
        fd: file descriptor to write to; the caller keeps it open.
        report: returns the line that says how many lines were dropped.
    """

    def __init__(self, fd: int, report: Callable[[int], str]) -> None:
        self._fd = fd
        self._report = report
        self._refused = 0  # lines that were dropped because too many waited
        self._failed = 0  # lines whose write failed
        self._reported = 0
        self._cut = False  # whether the last write ended within a line
        self._queue: SimpleQueue[str | threading.Event] = SimpleQueue()
        # A daemon thread, since the interpreter must not wait for it at exit: it may be blocked.
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """The number of lines that were dropped: too many waited, or their write failed."""
        return self._refused + self._failed

    def put(self, line: str) -> None:
        """Enqueue a line, without its newline. It is dropped if too many lines wait."""
        if self._queue.qsize() < MAX_LINES:
            self._queue.put(line)
        else:
            self._refused += 1

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines so far are written, for at most `timeout_s` seconds."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(timeout_s)

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            time.sleep(GATHER_S)
            while batch := [*batch, *self._more()]:
                self._write([item for item in batch if isinstance(item, str)])
                for item in batch:
                    if not isinstance(item, str):
                        item.set()
                batch = []

    def _more(self) -> list[str | threading.Event]:
        batch: list[str | threading.Event] = []
        with suppress(Empty):
            while len(batch) < MAX_BATCH:
                batch.append(self._queue.get_nowait())
        return batch

    def _write(self, lines: list[str]) -> None:
        """Write lines, then a line about dropped lines if there are new ones."""
        lost = self._write_all(lines)
        self._failed += lost
        dropped = self.dropped
        if lost or dropped == self._reported:
            return
        if not self._write_all([self._report(dropped - self._reported)]):
            self._reported = dropped

    def _write_all(self, lines: list[str]) -> int:
        """Write lines, and return how many of them could not be written."""
        text = "".join(f"{line}\n" for line in lines)
        data = f"\n{text}" if self._cut else text
        rest = memoryview(data.encode(errors="backslashreplace"))
        while rest:
            try:
                written = os.write(self._fd, rest)
            except BlockingIOError:  # the descriptor was made non-blocking outside of this process
                select.select([], [self._fd], [])
            except OSError:  # the disk is full, or the reader has closed its end
                return min(len(lines), bytes(rest).count(b"\n"))
            else:
                self._cut = rest[written - 1] != ord("\n")
                rest = rest[written:]
        return 0
