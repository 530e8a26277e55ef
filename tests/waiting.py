"""Waiting in tests for something that another process does, or for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil

CHECK_EVERY_S = 0.02
SHARE_OF_WAIT = 0.1  # of the time that was waited, until the next look


def until(
    condition: Callable[[], object],
    what: str = "the condition was not met in time",
    *,
    timeout_s: float = 60.0,
    passes: bool = True,
) -> None:
    """Wait for `condition`; fail with `what` if it is not true within `timeout_s`.

    Args:
        passes: the condition may not stay true. Otherwise it is looked at less often the longer it takes,
            since each look may be a request of some 10 ms of CPU.
    """
    began = time.monotonic()
    while not condition():
        took_s = time.monotonic() - began
        assert took_s < timeout_s, what
        time.sleep(CHECK_EVERY_S if passes else max(CHECK_EVERY_S, took_s * SHARE_OF_WAIT))


until_lasting = partial(until, passes=False)  # for what stays true once it is


def lives(process: psutil.Process) -> bool:
    """Whether a process runs. One that ended does not, although its parent may not have looked yet."""
    with suppress(psutil.NoSuchProcess):  # it may end between the two
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
