"""Scratch runs in the database: submit one, its work, and what its command wrote.

A scratch run is a job of a kind of its own: a command that runs once, and is not judged. Every function takes a
session and blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections import deque

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import PRIORITIES
from warpcall_bench.artefacts import ncu, tools
from warpcall_bench.artefacts.service import NewArtefact
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.events import append_event, latest
from warpcall_bench.jobs.models import CHECK, ScratchRequest
from warpcall_bench.jobs.tables import SCRATCH, Job, JobEvent
from warpcall_bench.runs.events import FileFetched, OutputWritten
from warpcall_bench.runs.messages import Task
from warpcall_bench.runs.sandbox import memory_bytes
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import files
from warpcall_service.identity import Caller
from warpcall_service.store.times import now_ms

OUTPUT = "output"  # kinds of events
FILE = "file"
FETCHED = "scratch-file"  # kind of artefacts
START_S = 2.0  # to start a run
# The beginning and the end of the output are kept, so much of each. An event counts as so much at least.
MOST_KEPT_BYTES = 512 << 10
LEAST_BYTES = 256
PROFILERS = {"ncu": ncu.program, "compute-sanitizer": tools.sanitizer}  # they talk by TCP


def submit(
    session: Session,
    caller: Caller,
    request: ScratchRequest,
    idempotency_key: str | None,
    max_jobs: int,
    most_bytes: int,
) -> tuple[Job, bool]:
    """Queue a scratch run, or find the one that was submitted with the same Idempotency-Key.

    Args:
        most_bytes: of its files together.

    Returns:
        The job, and whether it is new.

    Raises:
        InvalidInput: the Idempotency-Key came with another request before, or the user has not sent a
            file.
        TooLarge: the files have too many bytes.
        Busy: the user has `max_jobs` jobs that are not finished.
    """
    clock_us = queue.lock(session)
    text = json.dumps(request.model_dump(mode="json"), separators=(",", ":"))
    sha256 = hashlib.sha256(f"{SCRATCH} {text}".encode()).hexdigest()
    if known := submissions.find_repeated(session, caller, sha256, idempotency_key):
        return known, False
    submissions.check_room(session, caller, max_jobs)
    expected_ms = round((request.limit_s + START_S) * 1e3)
    id_ = secrets.token_hex(6)
    job = Job(
        id=id_,
        kind=SCRATCH,
        user_name=caller.name,
        idempotency_key=idempotency_key,
        request=text,
        request_sha256=sha256,
        question_sha256=hashlib.sha256(f"{SCRATCH} {id_}".encode()).hexdigest(),  # answers nothing
        op=SCRATCH,
        implementations="[]",
        precision=CHECK,  # the one that times nothing
        priority=PRIORITIES.index("normal"),
        tags="[]",
        name=request.name or request.line,
        note="",
        state="queued",
        detail="",
        cases_total=0,
        cases_done=0,
        attempts=0,
        created_ms=now_ms(),
        since_us=clock_us,
        cost_us=expected_ms * 1000,
        nominal_ms=expected_ms,
        estimated_ms=expected_ms,
        took_ms=0,
        private=request.private,
        gpu=request.gpu,
        node=request.node,
    )
    session.add(job)
    session.flush()
    files.keep_for_job(session, job.number, caller.name, request.files, most_bytes)
    append_event(session, job, "state", {"state": "queued"})
    return job, True


def task_of(session: Session, job: Job, device: str, settings: BenchSettings) -> Task:
    """The work of a scratch run that was claimed."""
    request = ScratchRequest.model_validate_json(job.request)
    sent, contents = files.of_job(session, job.number)
    folder, _, name = request.command[0].rpartition("/")
    is_sent = bool(folder) and not folder.startswith("/")  # a file of the folder that was sent
    find = None if is_sent else PROFILERS.get(name)
    found = "" if find is None else find(settings)
    command = [found, *request.command[1:]] if found else request.command
    return {
        "device": device,
        "modules": {},
        "uploads": [],
        "contents": contents,
        "problem": None,
        "sandboxed": True,
        "op": job.op,
        "implementations": [],
        "precision": job.precision,
        "seed": 0,
        "cases": [],
        "memory_bytes": memory_bytes(settings),
        "threads": settings.cpu_threads,
        "scratch": {
            "command": command,
            "files": sent,
            "fetch": request.fetch,
            "limit_s": request.limit_s,
            "most_bytes": int(settings.artefact_max_bytes),
            "program": found,
            "profiler": find is not None,
        },
    }


def artefact_of(fetched: FileFetched) -> NewArtefact:
    """The artefact of a file that a run sends back."""
    return NewArtefact(name=fetched.name, kind=FETCHED, media_type="application/octet-stream")


def store_file(session: Session, job: Job, fetched: FileFetched, why: str) -> None:
    """Tell readers of a file that a run has sent back.

    Args:
        why: it could not be stored; empty if it was.
    """
    append_event(session, job, FILE, {"path": fetched.path, "artefact": fetched.name, "error": why})


class OutputEvents:
    """Writes the output of one run as events, and deletes its middle when it is too long."""

    def __init__(self) -> None:
        self._first_bytes = 0
        self._last: deque[tuple[int, int]] = deque()  # sequences and bytes of events that may go
        self._last_bytes = 0

    def store(self, session: Session, job: Job, written: OutputWritten) -> None:
        """Add an event. A reader ignores one that comes twice, by its `at`."""
        data = {"at": written.at, "data": base64.b64encode(written.content).decode()}
        append_event(session, job, OUTPUT, data)
        session.flush()
        sequence = latest(session, job.number).sequence
        nbytes = max(len(written.content), LEAST_BYTES)
        if self._first_bytes + nbytes <= MOST_KEPT_BYTES and not self._last:
            self._first_bytes += nbytes
            return
        self._last.append((sequence, nbytes))
        self._last_bytes += nbytes
        gone = []
        while self._last_bytes > MOST_KEPT_BYTES:
            old, old_bytes = self._last.popleft()
            self._last_bytes -= old_bytes
            gone.append(old)
        if gone:
            theirs = JobEvent.job_number == job.number, JobEvent.sequence.in_(gone)
            session.execute(
                sa.delete(JobEvent).where(*theirs).execution_options(synchronize_session=False)
            )


def last_output(session: Session, job: Job, most_bytes: int) -> list[OutputWritten]:
    """The end of what is kept of the output of a run: events with at most so many bytes, but at least one."""
    rows = session.scalars(
        sa.select(JobEvent.data)
        .where(JobEvent.job_number == job.number, JobEvent.kind == OUTPUT)
        .order_by(JobEvent.sequence.desc())
        .execution_options(yield_per=20)
    )
    found: list[OutputWritten] = []
    with rows:
        for data in rows:
            event = json.loads(data)
            written = OutputWritten(event["at"], base64.b64decode(event["data"]))
            if found and written.at >= found[-1].at:
                continue  # it was written twice
            most_bytes -= len(written.content)
            if found and most_bytes < 0:
                break
            found.append(written)
    return found[::-1]


def fetched_files(session: Session, job: Job) -> list[dict[str, str]]:
    """The `path`, the `artefact` and an `error` of each file that a run has sent back."""
    rows = session.scalars(
        sa.select(JobEvent.data)
        .where(JobEvent.job_number == job.number, JobEvent.kind == FILE)
        .order_by(JobEvent.sequence)
    )
    return [json.loads(data) for data in rows]
