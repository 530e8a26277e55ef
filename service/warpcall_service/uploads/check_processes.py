"""Processes for checks: each answers one request, and one that has imported torch waits for the next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from warpcall_service.runs.messages import WaitingRequest
from warpcall_service.runs.one_shot import EndedBefore, NotStarted, OneShot
from warpcall_service.settings import Settings

WAITING_MODULE = "warpcall_service.uploads.waiting_check"
ENDED = "the process that waited for the next check has ended"

log = logging.getLogger("warpcall.uploads")


class _Waiting(NamedTuple):
    """A process that waits for a request, and the task that ends it if none comes."""

    process: OneShot
    task: asyncio.Task[None]


class CheckProcesses:
    """Runs checks, each in a new process.

    Importing torch and Triton takes most of the time of a check. Therefore the next process is
    started when a check takes the one that waits, and waits for `check_wait_s`. It runs in the
    sandbox if a check of code of users needed it, and there is another one for the server's own
    code. A check that finds no process waiting starts one for itself, and the next one at its end.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: dict[bool, _Waiting] = {}  # by whether it is for the server's own code
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def run(
        self,
        module: str,
        request: Mapping[str, Any],
        limit_s: float,
        max_answer_bytes: int,
        *,
        trusted: bool = False,
        imports: bool = True,
    ) -> bytes:
        """The answer of a module of the worker's folder; errors are as in `OneShot.ask`.

        Args:
            limit_s: seconds from now.
            trusted: the check runs only the server's own code.
            imports: the check needs torch or Triton. Otherwise a new process is as fast, and the
                one that waits stays.
        """
        try:
            waiting = self._waiting.pop(trusted, None) if imports else None
            if waiting is not None:
                waiting.task.cancel()
                self.expect(trusted=trusted)
                wrapped: WaitingRequest = {"module": module, "request": request}
                try:
                    return await waiting.process.ask(
                        json.dumps(wrapped).encode(), limit_s, max_answer_bytes, waits=True
                    )
                except EndedBefore:
                    log.warning(ENDED)
            process = OneShot(self._settings, f"warpcall_service.worker.{module}", trusted=trusted)
            return await process.ask(json.dumps(request).encode(), limit_s, max_answer_bytes)
        finally:
            if imports:
                self.expect(trusted=trusted)

    def expect(self, *, trusted: bool) -> None:
        """Start a process that waits for the next check, unless one waits already."""
        if self._stopped or not self._settings.check_wait_s or trusted in self._waiting:
            return
        try:
            process = OneShot(self._settings, WAITING_MODULE, trusted=trusted)
        except NotStarted as error:
            log.warning("no process can wait for the next check: %s", error)
            return
        task = asyncio.create_task(self._end_unused(process, trusted))
        self._waiting[trusted] = _Waiting(process, task)

    async def stop(self) -> None:
        """End the processes that wait, and start no more."""
        self._stopped = True
        for waiting in self._waiting.values():
            waiting.task.cancel()
        ends = [waiting.process.end() for waiting in self._waiting.values()]
        self._waiting.clear()
        await asyncio.gather(*ends, *self._ending)

    async def _end_unused(self, process: OneShot, trusted: bool) -> None:
        """End a process that waits after `check_wait_s`, or when it has ended by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.check_wait_s):
                await process.wait()
                log.warning(ENDED)
        del self._waiting[trusted]
        task = asyncio.create_task(process.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
