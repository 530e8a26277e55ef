"""Lanes whose processes stand still, so that their calls wait for as long as a test needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from demo.server import Server


@contextmanager
def stopped_lane(server: Server) -> Iterator[None]:
    """Let the processes of all lanes stand still; `server` may be the supervisor of several."""
    pids = [
        child.pid
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "warpcall_service.worker.main" in child.cmdline()
    ]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # it was ended meanwhile
                os.kill(pid, signal.SIGCONT)
