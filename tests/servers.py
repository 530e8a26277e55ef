"""Servers for tests whose processes are forks of one template: see tests/forks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import demo.server
from demo.server import START_TIMEOUT_S, Server
from tests.forks import Forked

__all__ = ["Server", "running_server"]

# A server writes to its whole arena once when it starts. The default is 2 GiB, which takes 2 to 3 s of CPU.
# Processes that wait for a next job take as much again, and tests look for the processes of one job.
# Tests of those that wait set it.
SMALL = {"WARPCALL_ARENA_BYTES": "64MiB", "WARPCALL_WAITING_PROCESS_S": "0"}


def running_server(
    settings: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    *,
    start_timeout_s: float = START_TIMEOUT_S,
) -> AbstractContextManager[Server]:
    """As `demo.server.running_server`, without the time of the imports and of a large arena."""
    return demo.server.running_server(
        {**SMALL, **(settings or {})}, under, start_timeout_s=start_timeout_s, popen=Forked
    )
