"""Sets a process's clock: Python imports this at its start where this folder is in PYTHONPATH.

The file that CLOCK names holds the seconds by which the time of day is ahead; it is read each time.
The monotonic clock stays as it is, as it does when a machine's time of day is set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import tests.service.brief_jobs.sitecustomize  # noqa: F401

FILE = Path(os.environ["CLOCK"])
real_ns = time.time_ns


def shifted_ns() -> int:
    return real_ns() + int(FILE.read_text() or "0") * 10**9


time.time_ns = shifted_ns
time.time = lambda: shifted_ns() / 1e9
