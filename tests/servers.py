"""Servers for tests whose processes are forks of one template: see tests/forks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import demo.server
from demo.server import START_TIMEOUT_S, Server
from tests.forks import Forked

__all__ = ["Server", "running_server"]


def running_server(
    settings: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    *,
    start_timeout_s: float = START_TIMEOUT_S,
) -> AbstractContextManager[Server]:
    """As `demo.server.running_server`, without the time of the imports."""
    return demo.server.running_server(
        settings, under, start_timeout_s=start_timeout_s, popen=Forked
    )
