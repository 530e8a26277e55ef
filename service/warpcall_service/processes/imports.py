"""Imports large packages without the garbage collector, and without the memory that only imports need."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

MADV_DONTNEED = 4


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


def release_import_memory() -> None:
    """Return memory that imports needed once: free heap, and code and constants of libraries.

    Importing torch and triton touches 100 MB of code, most of which registers operators and passes,
    and 40 MB of constants. The kernel maps these pages again from its cache when they are used. Pages
    that were written, such as addresses that the loader has filled in, would be lost: a mapping that
    has some is kept. They are its anonymous memory, or swapped out.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    head, is_written = [""], True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            head = words
        elif words[0] == "Anonymous:":
            is_written = words[1] != "0"
        elif words[:2] == ["Swap:", "0"] and not is_written and _is_read_only_library(head):
            begin, end = (int(address, 16) for address in head[0].split("-"))
            libc.madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(MADV_DONTNEED)
            )


def _is_read_only_library(head: list[str]) -> bool:
    """Whether the head of a mapping in /proc/self/smaps says that no one may write there."""
    flags, name = head[1], head[-1].rpartition("/")[2]
    return flags in ("r-xp", "r--p") and name.startswith(("libtorch", "libtriton"))
