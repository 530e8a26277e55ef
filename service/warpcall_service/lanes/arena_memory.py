"""The memory of an arena, shared with a worker process: all of it for a GPU, as used for a CPU lane."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

COPY_BYTES = 1 << 20  # copied without a pause, in 0.2 ms
PREFAULT_BYTES = 64 << 20  # made in one step, in 30 ms
CHUNK_BYTES = 32 << 20  # given back at once
IDLE_S = 60.0  # without calls, after which memory is given back
PAUSE_S = 0.02  # between two chunks
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it


class ArenaMemory:
    """An anonymous file (memfd) and its mapping.

    Args:
        nbytes: a whole number of pages.
        is_used: tells whether anything is allocated.

    Attributes:
        fd: the memfd, for the worker process.
        view: all bytes of the memory.
    """

    def __init__(self, nbytes: int, is_used: Callable[[], bool]) -> None:
        self.nbytes = nbytes
        self._is_used = is_used
        self._touched: set[int] = set()  # chunks whose pages may have been made
        self._touches = 0
        self.fd = os.memfd_create("warpcall-arena")
        os.ftruncate(self.fd, nbytes)
        self._map = mmap.mmap(self.fd, nbytes)
        self.view = memoryview(self._map)
        self._stopped = asyncio.Event()

    def touch(self, begin: int, end: int) -> None:
        """Note that a range is going to be used."""
        self._touches += 1
        first, last = begin // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        self._touched.add(first)
        if last > first:
            self._touched.update(range(first + 1, last + 1))

    async def keep(self, device: str) -> None:
        """Take all memory for a GPU. For a CPU, give back what is not used, until `stop`.

        Memory is given back once nothing was allocated for IDLE_S, in pieces that take some ms each.
        """
        if takes_all(device):
            await asyncio.to_thread(self.prefault)
            return
        while not self._stopped.is_set():
            before = self._touches
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self._stopped.wait()
            while self._touched and self._touches == before and not self._is_used():
                self._give_back(self._touched.pop())
                await asyncio.sleep(PAUSE_S)

    def prefault(self) -> None:
        """Make the pages before they are used.

        A body whose pages are made while it is received takes twice as long. This blocks for some
        0.5 s a GB, so call it from a thread.
        """
        prefault(self._map, self._stopped.is_set)

    def stop(self) -> None:
        """Make `keep` return soon."""
        self._stopped.set()

    def close(self) -> None:
        """Unmap the memory; while views of it exist, the last of them unmaps it."""
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()

    def _give_back(self, chunk: int) -> None:
        """Return the pages of a chunk to the system, which makes new ones when they are used.

        Nothing may use the chunk meanwhile. Its bytes are lost. An error has no effect.
        """
        begin = chunk * CHUNK_BYTES
        ctypes.CDLL(None).fallocate(
            ctypes.c_int(self.fd),
            ctypes.c_int(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE),
            ctypes.c_long(begin),
            ctypes.c_long(min(CHUNK_BYTES, self.nbytes - begin)),
        )


def takes_all(device: str) -> bool:
    """Whether a lane takes its whole arena at its start, because a GPU needs it page-locked.

    On a CPU lane pages are made when they are used first, and given back when the lane is idle.

    Args:
        device: "cpu", "cuda:<i>", or "auto".
    """
    return device.startswith("cuda") or (device == "auto" and Path("/dev/nvidiactl").exists())


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


async def copy_in_chunks(target: memoryview, source: memoryview) -> None:
    """Copy to the start of `target`, and let other tasks run after each chunk."""
    for begin in range(0, len(source), COPY_BYTES):
        if begin:
            await asyncio.sleep(0)
        piece = source[begin : begin + COPY_BYTES]
        target[begin : begin + len(piece)] = piece
