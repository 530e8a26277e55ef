"""Checks several uploaded sources: python -m warpcall_bench.programs.sources_check, in the sandbox.

Each source is checked as `upload_check` does it, in a fork of this process, several at a time.
Importing torch takes a process two seconds, and the forks have it already. All sources are of one
user, and each can reach the others' forks: an answer is only as honest as all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpcall_bench.programs import source_check, upload_check
from warpcall_bench.programs.source_check import Answers
from warpcall_bench.runs import trees
from warpcall_bench.runs.messages import ChecksRequest
from warpcall_service.lanes.messages import LENGTH
from warpcall_service.processes.imports import quick_imports

MOST_AT_ONCE = 8
MAX_ANSWER_BYTES = 16 << 10
MARGIN_S = 3.0  # beyond its limit, in which a fork ends itself
PIECE_BYTES = 64 << 10


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check)


def _check(request: ChecksRequest, folder: Path, answers: Answers) -> Mapping[str, Any]:
    """Check all sources. The answer has that of each in order, None for a fork that has none."""
    waiting = [*enumerate(request["checks"])]
    waiting.reverse()
    with quick_imports():
        for package in upload_check.SLOW_PACKAGES:
            if any(trees.mentions(check, package) for _, check in waiting):
                importlib.import_module(package)
    found: list[Any] = [None] * len(waiting)
    most = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < most:
                number, check = waiting.pop()
                fork = _Fork(number, check, folder)
                selector.register(fork.sock, selectors.EVENT_READ, fork)
            forks: list[_Fork] = [key.data for key in selector.get_map().values()]
            until = min(fork.until for fork in forks)
            for key, _ in selector.select(max(0.0, until - time.monotonic())):
                key.data.receive()
            for fork in forks:
                if fork.has_ended:
                    selector.unregister(fork.sock)
                    found[fork.number] = fork.end()
    return {"answers": found}


class _Fork:
    """A fork that checks one source.

    Attributes:
        sock: from which its answer is received.
        until: when it is killed, by time.monotonic().
    """

    def __init__(self, number: int, check: Any, folder: Path) -> None:
        self.number = number
        self.until = time.monotonic() + check["limit_s"] + MARGIN_S
        self.sock, theirs = socket.socketpair()
        self._received = bytearray()
        self._is_open = True
        own = Path(tempfile.mkdtemp(dir=folder))
        self._pid = os.fork()
        if not self._pid:
            self.sock.close()
            answers = Answers(theirs)
            source_check.answer(upload_check.check, check, own, answers)
            os._exit(0)
        theirs.close()

    @property
    def has_ended(self) -> bool:
        """Whether its answer is complete, or no more of it will come."""
        return not self._is_open or self._whole() is not None or time.monotonic() >= self.until

    def receive(self) -> None:
        """Receive what is there."""
        piece = b""
        with contextlib.suppress(OSError):
            piece = self.sock.recv(PIECE_BYTES)
        self._received += piece
        self._is_open = bool(piece) and len(self._received) <= MAX_ANSWER_BYTES

    def end(self) -> Any:
        """End the fork, and return its answer; None if it has none."""
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        whole = self._whole()
        if whole is None:
            return None
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(whole)
        return None

    def _whole(self) -> bytes | None:
        if len(self._received) < LENGTH.size:
            return None
        (nbytes,) = LENGTH.unpack_from(self._received)
        content = bytes(self._received[LENGTH.size :])
        return content[:nbytes] if len(content) >= nbytes else None


if __name__ == "__main__":
    main()
