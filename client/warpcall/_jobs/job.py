"""One benchmark job in the SDK: watch it, cancel it, read what it measured."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from warpcall import wire
from warpcall._blocking import blocking, each_now, run_now
from warpcall._core import Core
from warpcall._jobs.artefacts import AsyncJobArtefact, JobArtefact, artefacts_at
from warpcall._jobs.events import events, quiet_s
from warpcall._jobs.handles import page_of, take_fields
from warpcall._jobs.parse import parse
from warpcall._jobs.progress import Bar, waiting
from warpcall._text import clean
from warpcall.artefacts import TopKernels
from warpcall.errors import InvalidInput, JobFailed, TransportError
from warpcall.jobs import (
    COMPLETED,
    UNFINISHED,
    JobDetails,
    JobEvent,
    JobInfo,
    JobProgress,
    NewShare,
    PrintedList,
    PrintedText,
)
from warpcall.jobs.results import CaseDetails, Results

PATH = wire.JOBS_PATH
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # an id of this form cannot lead to another path
ARTEFACTS = "/artefacts"
KERNELS = "torch-kernels"  # kind of artefacts
POLL_S = 2.0  # between two requests for the place in the queue


class JobHandle(JobInfo):
    """A benchmark job on a server, with the fields of `warpcall.jobs.JobInfo`.

    The fields are as in the server's latest answer. `refresh`, `cancel` and `wait` update them.

    Attributes:
        info: the latest answer itself. It does not change later.
    """

    def __init__(self, core: Core, info: JobInfo) -> None:
        self._core = core
        self._update(info)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        why = f": {self.detail}" if self.state == "partial" else ""
        state = f"{self.state} on {self._core.config.url}{why}"
        return clean(f"{type(self).__name__}({self.id!r}, {self.title}, {state})")

    @property
    def ended(self) -> bool:
        """Whether the job had ended when the server answered last."""
        return self.state not in UNFINISHED

    @property
    def page_url(self) -> str | None:
        """Address of the job's page; None for a server on a Unix socket."""
        return page_of(self._core, f"/jobs/{self.id}")

    @property
    def _name(self) -> str:
        return f"the job {self.id}"

    def _update(self, info: JobInfo) -> None:
        if not ID.fullmatch(info.id):
            raise TransportError(f"the id of a job must match {ID.pattern}, got {info.id!r:.60}")
        take_fields(self, JobInfo, info)
        self.info = info

    async def _refresh(self) -> None:
        self._update(details_from(await self._core.get_json(path_of(self.id))))

    async def _cancel(self) -> None:
        self._update(
            details_from(await self._core.request_json("POST", path_of(self.id, "/cancel")))
        )

    async def _set_private(self, private: bool) -> None:
        payload = await self._core.request_json("PATCH", path_of(self.id), {"private": private})
        self._update(details_from(payload))

    def _events(self, after: int, deadline: float | None) -> AsyncGenerator[JobEvent, None]:
        return events(self._core, path_of(self.id, "/events"), after, deadline, self._name)


class AsyncJob(JobHandle):
    """`Job` for `AsyncClient`; its methods are awaited."""

    async def refresh(self) -> AsyncJob:
        """As `Job.refresh`, awaited."""
        await self._refresh()
        return self

    async def wait(self, timeout_s: float | None = None) -> Results:
        """Wait until the job has ended, and return its results.

        A progress bar is shown on a terminal and in a notebook, unless the client has
        `progress=False`. `measurements` of the results has a row for
        each implementation of each case.

        No error is raised for a job in which only some implementations failed. Its state is
        "partial", `detail` and the `remarks` of the results name them, and the `status` of their
        rows says how they failed.

        Raises:
            JobFailed: the job did not succeed, not even in part; `results` returns what it measured.
            TimedOut: the job had not ended after `timeout_s` seconds. It continues.
        """
        deadline = deadline_of(timeout_s)
        bar = Bar(self, self._core.shows_progress)
        try:
            while (
                bar.shown and self.state == "queued"
            ):  # no event tells of a new place in the queue
                bar.show(waiting(self))
                await self._core.transport.sleep(min(POLL_S, quiet_s(deadline, self._name)))
                await self._refresh()
            async with aclosing(self._events(0, deadline)) as happened:
                async for event in happened:
                    bar.on_event(event)
        finally:
            bar.close()
        await self._refresh()
        if self.state not in COMPLETED:
            raise JobFailed(self.info)
        return await results_of(self._core, self.id, samples=False)

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> AsyncIterator[JobEvent]:
        """As `Job.events`, for `async for`."""
        return self._events(after, deadline_of(timeout_s))

    async def results(self, *, samples: bool = False) -> Results:
        """What the job has measured so far, with all samples if `samples` is true."""
        return await results_of(self._core, self.id, samples=samples)

    async def case(self, position: int) -> CaseDetails:
        """One case that the job has measured, with its rows and all samples.

        Args:
            position: number of the case in the job, from 0.

        Raises:
            NotFound: the job has no such case, or has not measured it.
        """
        if position < 0:
            raise InvalidInput(f"position must be at least 0, got {position}", field="position")
        path = path_of(self.id, f"/cases/{position:d}")
        return parse(CaseDetails, await self._core.get_json(path), "a case")

    async def printed(self) -> list[PrintedText]:
        """What uploads printed in the cases of the job: until the first call of a case had returned,
        and the end of it where a later call failed.

        The texts have line ends and tabs, and no other control characters.
        """
        path = path_of(self.id, "/printed")
        found = parse(PrintedList, await self._core.get_json(path), "a list of printed texts")
        return found.printed

    async def artefacts(self) -> list[AsyncJobArtefact]:
        """As `Job.artefacts`, awaited."""
        return await artefacts_at(self._core, path_of(self.id, ARTEFACTS), AsyncJobArtefact)

    async def top_kernels(self) -> list[TopKernels]:
        """What took the most time in each trace of the job, for a job with the profile "torch".

        Each names the case and the implementation. Those of traces that could not be made, or that have
        expired, are missing; `artefacts` says why.
        """
        listed = await artefacts_at(self._core, path_of(self.id, ARTEFACTS), AsyncJobArtefact)
        return [
            replace(
                parse(TopKernels, _json_of(await one.read()), "a table of kernels"),
                position=one.position,
                implementation=one.implementation,
            )
            for one in listed
            if one.kind == KERNELS and not one.error
        ]

    async def progress(self) -> JobProgress:
        """Where the time of the job went, and what it does now."""
        payload = await self._core.get_json(path_of(self.id, "/progress"))
        return parse(JobProgress, payload, "the progress of a job")

    async def share(self, *, other: str | None = None, expires_s: float | None = None) -> NewShare:
        """A new link with which people without a key read this job.

        Args:
            other: id of a job that the link compares this one with.
            expires_s: seconds until the link expires; None means that it does not.

        Raises:
            Forbidden: one of the jobs belongs to another user, and the caller is no administrator.
            InvalidInput: one of the jobs is private.
        """
        return await new_share(self._core, self.id, other, expires_s)

    async def set_private(self, private: bool = True) -> AsyncJob:
        """As `Job.set_private`, awaited."""
        await self._set_private(private)
        return self

    async def cancel(self) -> AsyncJob:
        """As `Job.cancel`, awaited."""
        await self._cancel()
        return self


class Job(JobHandle):
    """A benchmark job, as `Client.jobs` returns it."""

    def refresh(self) -> Job:
        """Ask the server for the job's present state, and return this job."""
        run_now(self._refresh())
        return self

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[JobEvent]:
        """Each event of the job above the sequence `after`, as it happens, until the job ends."""
        return each_now(self._events(after, deadline_of(timeout_s)))

    def artefacts(self) -> list[JobArtefact]:
        """The files that belong to the job, such as profiles, and why some could not be stored.

        Each has the fields of `warpcall.artefacts.Artefact`, and a method `download(path)`.
        """
        return run_now(artefacts_at(self._core, path_of(self.id, ARTEFACTS), JobArtefact))

    def set_private(self, private: bool = True) -> Job:
        """Let only the job's user and administrators read it, or with False all users.

        Raises:
            Forbidden: the job belongs to another user, and the caller is no administrator.
        """
        run_now(self._set_private(private))
        return self

    def cancel(self) -> Job:
        """End the job, and return it. What it has measured is kept.

        Raises:
            Forbidden: the job belongs to another user, and the caller is no administrator.
        """
        run_now(self._cancel())
        return self

    wait = blocking(AsyncJob.wait)
    results = blocking(AsyncJob.results)
    case = blocking(AsyncJob.case)
    top_kernels = blocking(AsyncJob.top_kernels)
    progress = blocking(AsyncJob.progress)
    printed = blocking(AsyncJob.printed)
    share = blocking(AsyncJob.share)


def _json_of(content: bytes) -> Any:
    """The JSON of a file; None if it is none, which fits no type."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def details_from(payload: Any) -> JobDetails:
    """A server's answer to a request for one job.

    Raises:
        TransportError: it is not a job.
    """
    return parse(JobDetails, payload, "a job")


async def results_of(core: Core, id_: str, *, samples: bool) -> Results:
    """What the job of this id has measured so far."""
    path = path_of(id_, "/results?samples=true" if samples else "/results")
    return parse(Results, await core.get_json(path), "results")


async def new_share(core: Core, id_: str, other: str | None, expires_s: float | None) -> NewShare:
    """A new share link to the job of this id, with its whole URL."""
    given = {"other": other, "expires_s": expires_s}
    wanted = {name: value for name, value in given.items() if value is not None}
    payload = await core.request_json("POST", path_of(id_, "/shares"), wanted, accepted=(201,))
    made = parse(NewShare, payload, "a share link")
    return replace(made, url=f"{core.config.url}{made.url}")


def deadline_of(timeout_s: float | None) -> float | None:
    """When a wait that begins now ends, on the clock of time.monotonic(); None for no limit."""
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidInput(f"timeout_s must be above 0, got {timeout_s}", field="timeout_s")
    return None if timeout_s is None else time.monotonic() + timeout_s


def path_of(id_: str, rest: str = "") -> str:
    """The URL path of a job, followed by `rest`."""
    return f"{PATH}/{checked_id(id_)}{rest}"


def checked_id(id_: str) -> str:
    """The id itself, if it has the form of one.

    Raises:
        InvalidInput: it does not.
    """
    if not isinstance(id_, str) or not ID.fullmatch(id_):
        raise InvalidInput(
            f"the id of a job must be letters, digits, - and _, at most 64, got {id_!r:.60}",
            field="id",
        )
    return id_
