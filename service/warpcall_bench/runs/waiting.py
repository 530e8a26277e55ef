"""Processes that have been started before there is work for them: one at most in each place.

Importing torch and Triton takes seconds. A process that has done so before work comes saves them. Each
is used once, so nothing of one piece of work is left for the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from warpcall_bench.runs.sources import SourceUnknown, package_files

LIBRARY = "warpcall_kernels"  # which processes import before they wait


class Process(Protocol):
    """What can wait."""

    @property
    def runs(self) -> bool:
        """Whether it has not ended by itself."""

    async def end(self) -> None:
        """End it, with all processes that it has started."""


P = TypeVar("P", bound=Process)


@dataclass(frozen=True)
class _Waiting(Generic[P]):
    process: P
    how: object
    expiry: asyncio.TimerHandle


class Waiting(Generic[P]):
    """A place for one process that waits. Use it in the event loop.

    Args:
        wait_s: seconds after which a process that nothing has used is ended; with 0 none waits.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiting: _Waiting[P] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def wants_one(self) -> bool:
        """Whether a process may be put here."""
        return bool(self._wait_s) and not self._stopped and self._waiting is None

    def put(self, process: P, how: object) -> None:
        """Let a process wait, if `wants_one`.

        Args:
            how: it was started. Only what would be started in the same way may use it, and only while the
                library is as it was: a job says which version it has measured by the files on the disk.
        """
        expiry = asyncio.get_running_loop().call_later(self._wait_s, self.expire)
        self._waiting = _Waiting(process, (how, _library()), expiry)

    def take(self, how: object) -> P | None:
        """The process that waits. One that has ended, or was started in another way, is ended."""
        waiting = self._waiting
        if waiting is None or not waiting.process.runs or waiting.how != (how, _library()):
            self.expire()
            return None
        self._waiting = None
        waiting.expiry.cancel()
        return waiting.process

    def expire(self) -> None:
        """End the process that waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.expiry.cancel()
            task = asyncio.get_running_loop().create_task(waiting.process.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """End the process that waits, and take no other one."""
        self._stopped = True
        self.expire()
        if self._ending:
            await asyncio.wait(self._ending)


def _library() -> object:
    """What changes when a file of the library does."""
    try:
        _, files = package_files(LIBRARY)
        return tuple((file, file.stat().st_mtime_ns) for file in files)
    except (SourceUnknown, OSError):
        return None
