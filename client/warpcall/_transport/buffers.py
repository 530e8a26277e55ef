"""Memory for answers, which is reused once the caller no longer holds the previous answer.

Fresh memory is slow, because the system clears each page at its first use. A 512 MB answer took
1,220 ms in fresh memory and 445 ms in reused memory. A bare socket that always receives into the
same buffer took 390 ms.
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from warpcall._arrays import Bytes
from warpcall.errors import TransportError

LARGE_BYTES = 4 << 20  # malloc itself reuses freed blocks that are smaller
GRAIN_BYTES = 4 << 20  # sizes are multiples of it, so that answers of similar sizes share memory
MAX_IDLE_BYTES = 1 << 30  # of unused memory that a client holds until it is closed


class Buffers:
    """A client's memory for answers. Threads can share it.

    Memory from `take` comes back by itself when its last array or view is deleted. This can happen
    in any thread at any moment, also inside the garbage collector. There is therefore no lock here;
    each step is a single operation on a dict.
    """

    def __init__(self) -> None:
        self._idle: dict[int, Bytes] = {}  # by id(), in the order in which they came back
        self._closed = False

    def take(self, nbytes: int) -> Bytes:
        """Memory of `nbytes` for an answer. Its contents are undefined.

        Raises:
            TransportError: there is not enough memory.
        """
        try:
            if nbytes < LARGE_BYTES:
                return np.empty(nbytes, np.uint8)
            size = -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES
            memory = self._reuse(size)
            if memory is None:
                memory = np.empty(size, np.uint8)
        except (MemoryError, ValueError) as error:
            raise TransportError(f"no memory for an answer of {nbytes} bytes") from error
        # Each array or view holds a reference to `lease`, and only `lease` refers to `memory`. So
        # `lease` is deleted, and `_return` called, when the last of them is gone.
        lease = (ctypes.c_ubyte * size).from_buffer(memory.data)
        weakref.finalize(lease, self._return, memory).atexit = False
        return np.frombuffer(memoryview(lease), np.uint8, nbytes)

    def close(self) -> None:
        """Free the idle memory, and hold none from now on."""
        self._closed = True
        self._idle.clear()

    def _reuse(self, size: int) -> Bytes | None:
        for key, memory in self._idle.copy().items():
            # Another thread may have taken it meanwhile.
            if memory.size == size and self._idle.pop(key, None) is not None:
                return memory
        return None

    def _return(self, memory: Bytes) -> None:
        if self._closed or memory.size > MAX_IDLE_BYTES:
            return
        self._idle[id(memory)] = memory
        idle = self._idle.copy()
        too_much = sum(other.size for other in idle.values()) - MAX_IDLE_BYTES
        for key, other in idle.items():
            if too_much <= 0:
                return
            self._idle.pop(key, None)
            too_much -= other.size
