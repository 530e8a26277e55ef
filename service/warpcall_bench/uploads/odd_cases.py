"""What is known of uploaded versions in the odd cases of their ops, and where it is shown.

The process of a job checks each version in odd cases before a job times it for the first time on a
kind of device (`warpcall_kernels.measuring.check_odd_cases`). The outcome is stored with the
version. Each later row of a version that was wrong gets a tag. Every function takes a session and
blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.implementations import WRONG_IN_ODD_CASES, DeviceKind, OddCases
from warpcall_bench.jobs.tables import Job
from warpcall_bench.uploads.database import REFERENCE
from warpcall_bench.uploads.tables import JobUpload, UploadedVersion
from warpcall_service.formats.payloads import checked

CHECK = "check"  # the precision of jobs that check all odd cases anyway


def unknown(session: Session, job: Job) -> list[str]:
    """The uploads of a job that its process must check first, by their names in the job.

    Odd cases of a problem would need calls of the problem's own code, so these are not checked.
    """
    if job.precision == CHECK or job.problem_number is not None:
        return []
    kind = _kind(job)
    return [
        name
        for name, row in _uploads(session, job)
        if kind not in json.loads(row.odd_cases or "{}")
    ]


def store(session: Session, job: Job, implementation: str, found: Mapping[str, Any]) -> None:
    """Store what a job's process found about an upload. The operation is idempotent."""
    for name, row in _uploads(session, job, lock=True):
        if name == implementation:
            known = json.loads(row.odd_cases or "{}")
            row.odd_cases = json.dumps({**known, _kind(job): found})


def marked(session: Session, job: Job, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a case with a tag on the rows of versions that were wrong in odd cases."""
    if job.precision == CHECK:
        return result
    kind = _kind(job)
    wrong = {
        name
        for name, row in _uploads(session, job)
        if any(one.device == kind and one.is_wrong for one in of_version(row))
    }
    if not wrong:
        return result
    rows = [
        {**one, "tags": [*one["tags"], WRONG_IN_ODD_CASES]} if one["name"] in wrong else one
        for one in result["implementations"]
    ]
    return {**result, "implementations": rows}


def of_version(row: UploadedVersion) -> list[OddCases]:
    """What is known of a version, for each kind of device on which it was checked."""
    stored = json.loads(row.odd_cases or "{}")
    return [checked(OddCases, {"device": kind, **stored[kind]}) for kind in sorted(stored)]


def remarks(session: Session, job: Job) -> list[str]:
    """For the readers of a job's results: which of its uploads are wrong in odd cases, and in which.

    Nothing is known of versions that were deleted; the tags of their rows remain.
    """
    if job.precision == CHECK or job.device is None:
        return []
    found = []
    for name, sha256 in json.loads(job.sources or "{}").items():
        parts = REFERENCE.fullmatch(name)
        if parts is None:
            continue
        row = session.scalars(
            sa.select(UploadedVersion).where(
                UploadedVersion.user_name == parts["user"],
                UploadedVersion.name == parts["name"],
                UploadedVersion.sha256 == sha256,
                UploadedVersion.deleted_ms.is_(None),
            )
        ).one_or_none()
        for one in () if row is None else of_version(row):
            if one.device == _kind(job) and one.is_wrong:
                found.append(f"{name} {one.text}; `warpcall check` shows all")
    return found


def _uploads(
    session: Session, job: Job, *, lock: bool = False
) -> Iterator[tuple[str, UploadedVersion]]:
    """The uploads of an unfinished job, with their names in the job."""
    query = (
        sa.select(JobUpload.implementation, UploadedVersion)
        .join(UploadedVersion, UploadedVersion.number == JobUpload.upload_number)
        .where(JobUpload.job_number == job.number)
        .order_by(JobUpload.implementation)
    )
    if lock:
        query = query.with_for_update(of=UploadedVersion)
    for found in session.execute(query):
        yield found.implementation, found.UploadedVersion


def _kind(job: Job) -> DeviceKind:
    """The kind of the device on which a job runs or ran."""
    return "cpu" if job.device == "cpu" else "gpu"
