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
    """Return memory that imports needed once: free heap, and machine code of libraries.

    Pages of code are never written, so the kernel maps them again from its cache when they run.
    Importing torch and triton touches 100 MB of code, most of which registers operators and passes.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, flags, *_, name = line.split()
        if flags == "r-xp" and name.rpartition("/")[2].startswith(("libtorch", "libtriton")):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(MADV_DONTNEED)
            )
