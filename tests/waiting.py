"""Waiting in tests for something that another process does, or for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

CHECK_EVERY_S = 0.02


def until(
    condition: Callable[[], object],
    what: str = "the condition was not met in time",
    *,
    timeout_s: float = 60.0,
) -> None:
    """Wait for `condition`; fail with `what` if it is not true within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(CHECK_EVERY_S)


def lives(process: psutil.Process) -> bool:
    """Whether a process runs. One that ended does not, although its parent may not have looked yet."""
    with suppress(psutil.NoSuchProcess):  # it may end between the two
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
