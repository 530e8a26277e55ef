"""Imports large packages without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Let a process import torch or the server in three quarters of the time, and end sooner.

    Modules stay until the process ends. A collection while they are imported finds next to nothing,
    but scans all that was imported so far. Afterwards they are frozen, so that no later collection
    scans them, nor the one at the exit of Python, which takes 0.3 s after an import of torch.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
