"""Makes the pages of a shared mapping before they are used."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

PREFAULT_BYTES = 64 << 20  # made in one step, in 30 ms
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it


def prefault(mapping: mmap.mmap, stop: Callable[[], bool]) -> None:
    """Make the pages of a shared mapping, in steps, until `stop()`; their contents are kept."""
    libc = ctypes.CDLL(None, use_errno=True)  # unlike mmap.madvise, it lets other threads run
    anchor = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(anchor)
    for offset in range(0, len(mapping), PREFAULT_BYTES):
        nbytes = min(PREFAULT_BYTES, len(mapping) - offset)
        if stop() or libc.madvise(
            ctypes.c_void_p(address + offset), ctypes.c_size_t(nbytes), MADV_POPULATE_WRITE
        ):
            return  # an older Linux makes each page when it is first used
