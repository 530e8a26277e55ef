"""Lanes whose processes stand still, so that their calls wait for as long as a test needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from demo.server import Server
from tests.suspended import suspended


@contextmanager
def stopped_lane(server: Server) -> Iterator[None]:
    """Let the processes of all lanes stand still; `server` may be the supervisor of several."""
    lanes = [
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "warpcall_service.worker.main" in child.cmdline()
    ]
    assert lanes
    with suspended(*lanes):
        yield
