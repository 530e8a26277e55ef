"""Profiles of implementations, as artefacts of a job: which ones it still has to make, and storing
their files while it runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall_bench.artefacts import ncu, tools
from warpcall_bench.artefacts.contents import KERNELS, REPORT, SANITIZER, TEXT, TRACE
from warpcall_bench.artefacts.service import Artefacts, NewArtefact, file_name
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs.tables import Job, JobCase, Measurement
from warpcall_bench.runs.events import FileFetched, ProfileMade
from warpcall_bench.runs.messages import (
    PROFILE_FILES,
    SANITIZERS,
    NcuOptions,
    ProfileTask,
    is_left_out,
)
from warpcall_bench.settings import BenchSettings
from warpcall_service.store.database import StoreError

MOST = 64  # profiles of one job
LIMIT_S = 60.0  # that a profile by a program of its own may take
STALL_SHARE = 0.5  # of the seconds without progress that a job may have, which a profile may take
CALL_SHARE = 0.8  # likewise of the seconds for which a job may keep its device
TEXT_TYPE = "text/plain; charset=utf-8"
FILES = {  # kind and media type, by the end of the name
    "kernels.json": (KERNELS, "application/json"),
    "trace.json": (TRACE, "application/json"),
    "ncu-rep": ("ncu-report", "application/octet-stream"),
    "compiled.json": (REPORT, "application/json"),
    "ncu.txt": (TEXT, TEXT_TYPE),
    "memcheck.txt": (SANITIZER, TEXT_TYPE),
    "racecheck.txt": (SANITIZER, TEXT_TYPE),
}
RETRY_S = 1.0  # between two attempts to store one
MAX_WAITING_BYTES = 64 << 20  # of profiles that wait to be stored

log = logging.getLogger("warpcall.artefacts")

MadeT = TypeVar("MadeT", ProfileMade, FileFetched)


def check(field: str, cases: int, implementations: int) -> None:
    """Check that a job does not have too many profiles.

    Args:
        field: that asks for them: "profile" or "sanitize".
        implementations: of which there are profiles.

    Raises:
        InvalidInput: it does.
    """
    if cases * implementations > MOST:
        what, which = {
            "profile": ("profiles", "an implementation"),
            "sanitize": ("compute-sanitizer", "an upload"),
        }[field]
        raise InvalidInput(
            f"{field}: a job with {what} may have at most {MOST} pairs of a case and {which}, "
            f"got {cases} x {implementations}",
            field=field,
        )


def left(session: Session, job: Job, settings: BenchSettings) -> ProfileTask | None:
    """The profiles that a job has yet to make; None if it makes none.

    An implementation that has no time in a case is not profiled there.
    """
    request = json.loads(job.request)
    profiler = request.get("profile")
    if profiler is None:
        return None
    made = _left(session, job, settings, profiler, json.loads(job.implementations))
    made["program"] = ncu.program(settings) if profiler == "ncu" else ""
    options: NcuOptions | None = request.get("profile_options")
    if options is not None:
        made["options"] = options
    return made


def left_to_sanitize(session: Session, job: Job, settings: BenchSettings) -> list[ProfileTask]:
    """What each tool of compute-sanitizer has yet to check in a job; nothing unless it was asked for."""
    if not json.loads(job.request).get("sanitize"):
        return []
    uploads = [name for name in json.loads(job.implementations) if "/" in name]
    found = [_left(session, job, settings, tool, uploads) for tool in SANITIZERS]
    return [{**one, "program": tools.sanitizer(settings)} for one in found]


def _left(
    session: Session, job: Job, settings: BenchSettings, profiler: str, names: Sequence[str]
) -> ProfileTask:
    """What a profiler has yet to do for these implementations of a job, without its program."""
    last = PROFILE_FILES[profiler][-1]
    implementations = json.loads(job.implementations)
    of_job = ArtefactRow.job_number == job.number
    made = set(session.scalars(sa.select(ArtefactRow.name).where(of_job)))
    left_out = {
        (position, name)
        for position, name, status in session.execute(
            sa.select(Measurement.position, Measurement.implementation, Measurement.status).where(
                Measurement.job_number == job.number
            )
        )
        if is_left_out(profiler, status)
    }
    cases = session.execute(
        sa.select(JobCase.position, JobCase.spec)
        .where(JobCase.job_number == job.number)
        .order_by(JobCase.position)
    )
    return {
        "profiler": profiler,
        "cases": [
            (position, json.loads(spec), wanted)
            for position, spec in cases
            if (
                wanted := [
                    name
                    for name in names
                    if (position, name) not in left_out
                    and described(implementations, position, name, last).name not in made
                ]
            )
        ],
        "most_bytes": int(settings.artefact_max_bytes),
        "program": "",
        "limit_s": min(LIMIT_S, STALL_SHARE * settings.job_stall_s),
        "call_s": CALL_SHARE * settings.job_block_s,
    }


def artefact_of(implementations: Sequence[str], made: ProfileMade) -> NewArtefact:
    """The artefact of a profile that a job has made.

    Args:
        implementations: all of the job.
    """
    return described(implementations, made.position, made.implementation, made.file)


def described(implementations: Sequence[str], position: int, name: str, file: str) -> NewArtefact:
    """The artefact of a file of a profile.

    Args:
        implementations: all of the job.
    """
    kind, media_type = FILES[file]
    number = implementations.index(name)
    return NewArtefact(
        name=file_name(f"case-{position}", f"{number}-{name}"[:80], file),
        kind=kind,
        media_type=media_type,
        position=position,
        implementation=name,
    )


class ArtefactWriter(Generic[MadeT]):
    """Stores the profiles of one run, or the files that it sends back, in order and without delaying it.

    While the database cannot be written, it tries again until it can.

    Args:
        job_of: as `Artefacts.add` takes it. If it raises an exception, nothing more is stored.
        artefact_of: describes the artefact of what was made.
        on_stored: called with what was made, and why it was not stored; empty if it was.
    """

    def __init__(
        self,
        artefacts: Artefacts,
        job_of: Callable[[Session], Job],
        artefact_of: Callable[[MadeT], NewArtefact],
        on_stored: Callable[[MadeT, str], None] = lambda made, why: None,
    ) -> None:
        self._artefacts = artefacts
        self._job_of = job_of
        self._artefact_of: Callable[[MadeT], NewArtefact] = artefact_of
        self._on_stored: Callable[[MadeT, str], None] = on_stored
        self._made: asyncio.Queue[MadeT] = asyncio.Queue()
        self._waiting_bytes = 0
        self._writing = asyncio.create_task(self._write())

    def put(self, made: MadeT) -> None:
        """Append a file to those that wait to be stored."""
        if self._waiting_bytes + len(made.content) > MAX_WAITING_BYTES:
            why = "the server could not store it in time"
            made = replace(made, content=b"", error=why)
        self._waiting_bytes += len(made.content)
        self._made.put_nowait(made)

    async def close(self) -> None:
        """Wait until all are stored."""
        await self._made.join()
        await self.abandon()

    async def abandon(self) -> None:
        """Stop. Those that wait are dropped."""
        self._writing.cancel()
        await asyncio.wait((self._writing,))

    async def _write(self) -> None:
        usable = True
        while True:
            made = await self._made.get()
            try:
                if usable:
                    await self._store(made)
            except Exception:  # such as a claim that is lost
                log.info("artefacts of a job are dropped", exc_info=True)
                usable = False
            self._waiting_bytes -= len(made.content)
            self._made.task_done()

    async def _store(self, made: MadeT) -> None:
        new = self._artefact_of(made)
        while True:
            try:
                if made.error:
                    why = await self._artefacts.add_error(self._job_of, new, made.error)
                else:
                    why = await self._artefacts.add(self._job_of, new, made.content)
            except StoreError:
                await asyncio.sleep(RETRY_S)
            else:
                self._on_stored(made, why)
                return
