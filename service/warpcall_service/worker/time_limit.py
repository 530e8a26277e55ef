"""A time limit that code of others cannot avoid, in a process of its own."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable


def end_after(limit_s: float, answer: Callable[[], None]) -> threading.Timer:
    """End this process after `limit_s` seconds, whatever its main thread does.

    A thread does that, since code could catch an exception. If code keeps the interpreter's lock,
    the thread cannot run. Then the kernel ends this process a second later, without an answer.

    Args:
        answer: called in that thread before the process ends.

    Returns:
        The timer. Pass it to `lift` if the process shall go on.
    """

    def end() -> None:
        answer()
        os._exit(0)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(limit_s) + 1)
    return timer


def lift(timer: threading.Timer) -> None:
    """Let this process go on beyond the limit."""
    signal.alarm(0)
    timer.cancel()
