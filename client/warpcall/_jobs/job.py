"""One benchmark job in the SDK: watch it, cancel it, read what it measured."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from warpcall import wire
from warpcall._blocking import each_now, run_now
from warpcall._jobs.events import events, quiet_s
from warpcall._jobs.progress import Bar, waiting
from warpcall.errors import InvalidInput, JobFailed, TransportError

if TYPE_CHECKING:
    from warpcall._core import Core

PATH = wire.JOBS_PATH
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what cannot be read as another path
MEMBERS = {"id", "state", "cases_total", "cases_done"}  # of a job, at least
WAITING = ("queued", "preparing", "waiting_gpu", "running", "finalizing")
LOOK_S = 2.0  # between two looks at the place in the queue


class JobHandle:
    """A benchmark job on a server.

    Attributes:
        id: its name there.
        told: what the server last told of it, as docs/http-api.md has it.
    """

    def __init__(self, core: Core, told: Any) -> None:
        if not isinstance(told, dict) or not told.keys() >= MEMBERS:
            raise TransportError(f"the server must tell of a job, got {told!r:.60}")
        if not isinstance(told["id"], str) or not ID.fullmatch(told["id"]):
            raise TransportError(f"the id of a job must match {ID.pattern}, got {told['id']!r:.60}")
        self._core = core
        self.id: str = told["id"]
        self.told: dict[str, Any] = told

    @property
    def _name(self) -> str:
        return f"the job {self.id}"

    @property
    def state(self) -> str:
        """As last told: queued, preparing, waiting_gpu, running, finalizing; then succeeded, failed,
        invalid, cancelled, timed_out or interrupted."""
        return str(self.told["state"])

    @property
    def ended(self) -> bool:
        """Whether it had ended when last told."""
        return self.state not in WAITING

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.state} on {self._core.config.url})"

    async def _refresh(self) -> None:
        self.told = JobHandle(self._core, await self._core.get_json(path_of(self.id))).told

    async def _cancel(self) -> None:
        path = path_of(self.id, "/cancel")
        self.told = JobHandle(self._core, await self._core.ask("POST", path)).told

    async def _wait(self, timeout_s: float | None) -> dict[str, Any]:
        deadline = deadline_of(timeout_s)
        bar = Bar(self.told, self._core.shows_progress)
        try:
            while bar.shown and self.state == "queued":  # its place in the queue is no event
                bar.show(waiting(self.told))
                await self._core.transport.sleep(min(LOOK_S, quiet_s(deadline, self._name)))
                await self._refresh()
            async with aclosing(self._events(0, deadline)) as happened:
                async for event in happened:
                    bar.tell(event)
        finally:
            bar.close()
        await self._refresh()
        if self.state != "succeeded":
            raise JobFailed(self.told)
        return await self._results(samples=False)

    def _events(self, after: int, deadline: float | None) -> AsyncGenerator[dict[str, Any], None]:
        return events(self._core, path_of(self.id, "/events"), after, deadline, self._name)

    async def _results(self, *, samples: bool) -> dict[str, Any]:
        return await results_of(self._core, self.id, samples=samples)


class Job(JobHandle):
    """A benchmark job, as Client.jobs gives it."""

    def refresh(self) -> Job:
        """Ask how it is now; itself."""
        run_now(self._refresh())
        return self

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until it has ended, with a bar if stderr is a terminal; its results.

        Their `measurements` are rows, one for each implementation of each case, with `median_us`,
        `ci_low_us`, `ci_high_us`, `ratio`, `verdict` and more: see docs/http-api.md.

        Raises:
            JobFailed: it ended otherwise than well; what it measured is in `results`.
            TimedOut: it had not ended after `timeout_s`, and goes on.
        """
        return run_now(self._wait(timeout_s))

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
        """What happened to it after the event `after`, and happens, until its end; each once."""
        return each_now(self._events(after, deadline_of(timeout_s)))

    def results(self, *, samples: bool = False) -> dict[str, Any]:
        """What it has measured so far; with all samples, if you like."""
        return run_now(self._results(samples=samples))

    def cancel(self) -> Job:
        """End it; what it has measured stays. Itself."""
        run_now(self._cancel())
        return self


class AsyncJob(JobHandle):
    """Job for AsyncClient; its methods are awaited."""

    async def refresh(self) -> AsyncJob:
        """Job.refresh, awaited."""
        await self._refresh()
        return self

    async def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Job.wait, awaited."""
        return await self._wait(timeout_s)

    def events(
        self, after: int = 0, *, timeout_s: float | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Job.events, for `async for`."""
        return self._events(after, deadline_of(timeout_s))

    async def results(self, *, samples: bool = False) -> dict[str, Any]:
        """Job.results, awaited."""
        return await self._results(samples=samples)

    async def cancel(self) -> AsyncJob:
        """Job.cancel, awaited."""
        await self._cancel()
        return self


async def results_of(core: Core, id_: str, *, samples: bool) -> dict[str, Any]:
    """What a job has measured so far."""
    path = path_of(id_, "/results?samples=true" if samples else "/results")
    found = await core.get_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("measurements"), list):
        raise TransportError(f"the server must tell of results, got {found!r:.60}")
    return found


def deadline_of(timeout_s: float | None) -> float | None:
    """On the clock of time.monotonic; None for no deadline."""
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidInput(f"timeout_s must be above 0, got {timeout_s}", field="timeout_s")
    return None if timeout_s is None else time.monotonic() + timeout_s


def path_of(id_: str, rest: str = "") -> str:
    """The path of a job, or of something about it."""
    return f"{PATH}/{checked(id_)}{rest}"


def checked(id_: str) -> str:
    """An id that can be one."""
    if not isinstance(id_, str) or not ID.fullmatch(id_):
        raise InvalidInput(
            f"the id of a job must be letters, digits, - and _, at most 64, got {id_!r:.60}",
            field="id",
        )
    return id_
