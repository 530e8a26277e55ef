"""The uploaded implementations that a job times: found by name, and kept until the job ends.

Every function takes a session and blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall_service.identity import Caller
from warpcall_service.runs.messages import Upload
from warpcall_service.store.tables import JobUpload, UploadedVersion
from warpcall_service.text import brief
from warpcall_service.uploads import database
from warpcall_service.uploads.database import REFERENCE


def resolve(
    session: Session, caller: Caller, op: str, names: Sequence[str], *, lock: bool = False
) -> dict[str, UploadedVersion]:
    """The uploaded implementations among the names that a job has, by these names.

    Args:
        lock: keep their rows from being deleted until the transaction ends.

    Raises:
        InvalidInput: one of them does not exist, may not be read, or is of another op.
    """
    found = {}
    for name in names:
        if "/" not in name:
            continue
        parts = REFERENCE.fullmatch(name)
        row = None
        if parts is not None:
            row = database.latest_version(
                session, caller, parts["user"], parts["name"], parts["version"] or "", lock=lock
            )
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
    return found


def keep_for_job(session: Session, job_number: int, found: Mapping[str, UploadedVersion]) -> None:
    """Keep the sources that a job needs until `release_job`."""
    session.add_all(
        JobUpload(job_number=job_number, implementation=name, upload_number=row.number)
        for name, row in found.items()
    )


def of_job(session: Session, job_number: int) -> list[Upload]:
    """The uploads that an unfinished job times."""
    found = session.execute(
        sa.select(
            JobUpload.implementation,
            UploadedVersion.op,
            UploadedVersion.function,
            UploadedVersion.source,
        )
        .join(UploadedVersion, UploadedVersion.number == JobUpload.upload_number)
        .where(JobUpload.job_number == job_number)
        .order_by(JobUpload.implementation)
    )
    return [
        {"name": name, "op": op, "function": function, "source": source}
        for name, op, function, source in found
    ]


def release_job(session: Session, job_number: int) -> None:
    """Erase what only this job, which has ended, still needed."""
    numbers = session.scalars(
        sa.select(JobUpload.upload_number).where(JobUpload.job_number == job_number)
    ).all()
    if numbers:
        session.execute(sa.delete(JobUpload).where(JobUpload.job_number == job_number))
        database.erase(session, numbers)
