"""Runs checks of sources in processes that have imported torch before the check was asked for.

Such a process has been started as any other one, with the walls of its own sandbox, has run our code
only, and is used for one check: an upload never meets the code of another one.
"""

from __future__ import annotations

import logging

from warpcall_bench.runs.one_shot import NotStarted, OneShot, launch_of
from warpcall_bench.runs.sandboxed import CannotStart
from warpcall_bench.runs.waiting import Waiting
from warpcall_bench.settings import BenchSettings

CHECK_MODULE = "warpcall_bench.programs.waiting_check"

log = logging.getLogger("warpcall.uploads")


class WaitingChecks:
    """Runs each check in a process of its own. After a check one is started for the next check.

    Checks that run at the same time start further processes.

    Args:
        trusted: as for `OneShot`.
    """

    def __init__(self, settings: BenchSettings, *, trusted: bool) -> None:
        self._settings = settings
        self._trusted = trusted
        self._waiting = Waiting[OneShot](settings.waiting_process_s)

    async def stop(self) -> None:
        """End the process that waits, and start none for a next check any more."""
        await self._waiting.stop()

    async def run(
        self, program: str, request: bytes, limit_s: float, max_answer_bytes: int
    ) -> bytes:
        """Let a program answer a request.

        Args:
            program: its module.
            request: JSON of the frame that the program reads.
            limit_s: seconds from now.

        Returns, raises: as `OneShot.ask`.
        """
        process = self._waiting.take(self._launch())
        try:
            if process is not None:
                try:
                    return await process.ask(request, limit_s, max_answer_bytes, program)
                except NotStarted as error:
                    log.warning("a process that waited for a check cannot be used: %s", error)
            process = OneShot(self._settings, CHECK_MODULE, trusted=self._trusted)
            return await process.ask(request, limit_s, max_answer_bytes, program)
        finally:
            self._start_next()

    def _start_next(self) -> None:
        """Start the process for the next check. If that fails, that check will say so."""
        launch = self._launch()
        if launch is None or not self._waiting.wants_one:
            return
        try:
            process = OneShot(self._settings, CHECK_MODULE, trusted=self._trusted)
        except NotStarted as error:
            log.warning("no process waits for the next check: %s", error)
        else:
            self._waiting.put(process, launch)

    def _launch(self) -> str | None:
        """How the sandbox would be started now; None if it cannot be used."""
        try:
            return launch_of(self._settings, trusted=self._trusted)
        except (CannotStart, OSError):
            return None
