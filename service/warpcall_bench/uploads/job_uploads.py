"""The uploads that a job needs: found by name, and kept until the job ends.

A job times uploaded implementations, and may measure an uploaded problem. Every function takes a session and blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from warpcall.errors import InvalidInput
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.messages import ProblemSource, Upload, Verified
from warpcall_bench.uploads import files
from warpcall_bench.uploads.database import IMPLEMENTATIONS, PROBLEMS
from warpcall_bench.uploads.tables import JobUpload, StoredProblem, UploadedVersion
from warpcall_service.identity import Caller
from warpcall_service.text import brief


def resolve(
    session: Session, caller: Caller, op: str, names: Sequence[str], *, lock: bool = False
) -> dict[str, UploadedVersion]:
    """The uploaded implementations among the names that a job has, by these names.

    Args:
        lock: keep their rows from being deleted until the transaction ends.

    Raises:
        InvalidInput: one of them does not exist, may not be read, or is of another op.
        TooLarge: their files have too many bytes together.
    """
    found = {}
    for name in names:
        if "/" not in name:
            continue
        row = IMPLEMENTATIONS.named(session, caller, name, lock=lock)
        if row is None:
            raise InvalidInput(
                f"implementations: there is no {brief(name)}, or it is not yours to read; it must "
                "be like user/name or user/name@3f2a91c0",
                field="implementations",
            )
        if row.op != op:
            raise InvalidInput(
                f"implementations: {name} computes {row.op}, this job times {op}",
                field="implementations",
            )
        found[name] = row
    files.check_job(session, found.values())
    return found


def resolve_problem(
    session: Session, caller: Caller, reference: str, *, field: str = "op", lock: bool = False
) -> StoredProblem:
    """The problem that a submission names.

    Args:
        reference: such as "ann/row-norm" or "ann/row-norm@3f2a91c0".
        field: of the request, for the error.
        lock: as in `resolve`.

    Raises:
        InvalidInput: it does not exist, or may not be read.
    """
    row = PROBLEMS.named(session, caller, reference, lock=lock)
    if row is None:
        raise InvalidInput(
            f"{field}: there is no problem {brief(reference)}, or it is not yours to read; it must "
            "be like user/name or user/name@3f2a91c0",
            field=field,
        )
    return row


def keep_for_job(session: Session, job_number: int, found: Mapping[str, UploadedVersion]) -> None:
    """Keep the sources that a job needs until `release_job`."""
    session.add_all(
        JobUpload(job_number=job_number, implementation=name, upload_number=row.number)
        for name, row in found.items()
    )


def of_job(session: Session, job_number: int) -> tuple[list[Upload], Mapping[str, bytes]]:
    """The uploads that an unfinished job times, and the content of their files by its SHA-256."""
    found = session.execute(
        sa.select(JobUpload.implementation, UploadedVersion)
        .join(UploadedVersion, UploadedVersion.number == JobUpload.upload_number)
        .options(undefer(UploadedVersion.source))
        .where(JobUpload.job_number == job_number)
        .order_by(JobUpload.implementation)
    ).all()
    numbers = [row.number for _, row in found if row.entry]
    trees, contents = files.of_versions(session, numbers) if numbers else ({}, {})
    return [_upload(name, row, trees) for name, row in found], contents


def _upload(name: str, row: UploadedVersion, trees: Mapping[int, dict[str, str]]) -> Upload:
    upload: Upload = {"name": name, "op": row.op, "function": row.function, "source": row.source}
    if row.entry:
        upload["entry"], upload["files"] = row.entry, trees[row.number]
    if (verified := verified_of(row)) is not None:
        upload["verified"] = True
        upload["language"], upload["launches"] = verified["language"], verified["launches"]
    return upload


def verified_of(row: UploadedVersion) -> Verified | None:
    """What a verified upload has beside its source; None for another one."""
    found: Verified | None = None if row.verified is None else json.loads(row.verified)
    return found


def problem_of_job(session: Session, job: Job) -> ProblemSource | None:
    """The problem that an unfinished job measures; None for an op of the library."""
    if job.problem_number is None:
        return None
    source = session.scalars(
        sa.select(StoredProblem.source).where(StoredProblem.number == job.problem_number)
    ).one()
    return {"name": job.op, "source": source}


def hidden_problems(session: Session, caller: Caller) -> set[int]:
    """Numbers of the problems that unfinished jobs measure and that the caller may not read."""
    used = sa.select(Job.problem_number).where(Job.problem_number.is_not(None)).distinct()
    hidden = sa.select(StoredProblem.number).where(
        StoredProblem.number.in_(used), sa.not_(PROBLEMS.readable(caller))
    )
    return {*session.scalars(hidden)}


def release_job(session: Session, job_number: int, problem_number: int | None) -> None:
    """Erase what only this job, which has ended, still needed.

    Args:
        problem_number: of its problem, which its row names no more.
    """
    files.release_job(session, job_number)
    numbers = session.scalars(
        sa.select(JobUpload.upload_number).where(JobUpload.job_number == job_number)
    ).all()
    if numbers:
        session.execute(sa.delete(JobUpload).where(JobUpload.job_number == job_number))
        IMPLEMENTATIONS.erase(session, numbers)
    if problem_number is not None:
        PROBLEMS.erase(session, [problem_number])
