"""How the server ends on a signal, or at a time that was given."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from collections.abc import Coroutine
from typing import Any, Protocol

log = logging.getLogger("warpcall")


class Stoppable(Protocol):
    """What uvicorn's server reads while it serves."""

    should_exit: bool
    force_exit: bool


class Stop:
    """Handles SIGTERM and SIGINT, from before the lanes start until the process ends.

    Args:
        end_s: seconds after the first signal at which the kernel ends the process in any case.
    """

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self.server: Stoppable | None = None
        self._reasons: set[str] = set()
        self._requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def or_done(self, start: Coroutine[Any, Any, None]) -> bool:
        """Run `start`, and cancel it if a signal comes first. Return whether it has ended."""
        starting = asyncio.create_task(start)
        requested = asyncio.create_task(self._requested.wait())
        await asyncio.wait((starting, requested), return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return False
        starting.result()
        return True

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._requested.is_set()

    def request_in(self, delay_s: float) -> None:
        """Stop after a time as on SIGTERM."""
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._request, "its time is over")

    def _on_signal(self, number: signal.Signals) -> None:
        self._request(signal.Signals(number).name)

    def _request(self, why: str) -> None:
        log.info("%s: the server stops", why)
        if not self._requested.is_set():
            # If a thread or the event loop is blocked then, no Python code can end the process.
            signal.alarm(math.ceil(self._end_s))
        self._requested.set()
        if self.server is not None:
            # systemd sends SIGTERM to this process and to its supervisor, which sends SIGINT then:
            # only the second signal of a kind means that requests shall not end.
            self.server.force_exit = self.server.force_exit or why in self._reasons
            self.server.should_exit = True
        self._reasons.add(why)
