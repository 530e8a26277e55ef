"""A server that measures itself: python -m bench.attacks.watched_server FILE.

Once in a millisecond its event loop notes how much CPU time its thread has used since the last
time. That is how long the loop was held, and unlike the time on a clock it does not depend on what
else runs on the machine. FILE holds the longest as a float64, in milliseconds; the reader sets it
to zero.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path

import uvloop

from warpcall_service import cli

TICK_S = 0.001
LONGEST = struct.Struct("<d")


class Longest:
    """The number in the file."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size < LONGEST.size:
            path.write_bytes(LONGEST.pack(0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), LONGEST.size)

    def read(self) -> float:
        """The longest so far, in milliseconds."""
        longest: float = LONGEST.unpack(self._map)[0]
        return longest

    def note(self, held_ms: float) -> None:
        """Keep the longer one."""
        if held_ms > self.read():
            self._map[:] = LONGEST.pack(held_ms)

    def forget(self) -> None:
        """Start anew."""
        self._map[:] = LONGEST.pack(0.0)


def main() -> None:
    """The server's command, with a watched event loop."""
    longest = Longest(Path(sys.argv[1]))
    new_event_loop = uvloop.new_event_loop

    def watched() -> uvloop.Loop:
        loop = new_event_loop()
        loop.call_soon(_tick, loop, longest, 0.0)
        return loop

    uvloop.new_event_loop = watched
    sys.argv[1:] = []
    cli.main()


def _tick(loop: asyncio.AbstractEventLoop, longest: Longest, before_s: float) -> None:
    now_s = time.thread_time()
    if before_s:
        longest.note((now_s - before_s) * 1e3)
    loop.call_later(TICK_S, _tick, loop, longest, time.thread_time())


if __name__ == "__main__":
    main()
