"""A thread that writes large responses, so that the event loop serves other clients meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from warpcall_service.processes.lone_calls import has_few_cpus


class LargeCalls:
    """What the large calls of all connections share.

    Attributes:
        under_way: calls that were begun and have not ended.
        has_cpus: whether there are enough CPUs to spend some on speed. With 2, a thread that sends took
            14 % more CPU for a call of 1 MB by one of 8 clients, and no more calls were made.
        send_thread: for responses while several calls are under way, if `has_cpus`.
    """

    __slots__ = ("has_cpus", "send_thread", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.has_cpus = not has_few_cpus()
        self.send_thread = SendThread()


Task = tuple[int, bytes, memoryview, Callable[[int], None]]


class SendThread:
    """Writes responses in the order in which they come. The thread is started when it is needed."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._queue: SimpleQueue[Task] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, fd: int, head: bytes, data: memoryview, written: Callable[[int], None]) -> bool:
        """Give a socket what it takes at once of `head` and `data`.

        Args:
            fd: of the socket, which must not block. It may be closed before this has ended.
            written: called in the event loop with the number of bytes; 0 if the socket is broken.

        Returns:
            Whether the thread does it. It does not if no more files can be opened.
        """
        try:
            own_fd = os.dup(fd)  # whose number no other connection gets while the thread writes
        except OSError:
            return False
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="send", daemon=True)
            self._thread.start()
        self._queue.put((own_fd, head, data, written))
        return True

    def _run(self) -> None:
        while True:
            self._write(*self._queue.get())

    def _write(
        self, fd: int, head: bytes, data: memoryview, written: Callable[[int], None]
    ) -> None:
        nbytes = 0
        with contextlib.suppress(OSError):
            nbytes = os.writev(fd, (head, data))
        os.close(fd)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(written, nbytes)
