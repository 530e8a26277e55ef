"""Artefacts in the database. Every function takes a session and blocks.

None of them checks who may read a job: callers find the job first, with the rights of the user.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.artefacts import Artefact
from warpcall.errors import NotFound
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs.tables import Job
from warpcall_service.formats.payloads import checked
from warpcall_service.store.times import moment, now_ms
from warpcall_service.text import brief


def insert(session: Session, row: ArtefactRow) -> None:
    """Add an artefact. It replaces one of the same job and name."""
    session.execute(
        sa.delete(ArtefactRow).where(
            ArtefactRow.job_number == row.job_number, ArtefactRow.name == row.name
        )
    )
    session.add(row)


def used_bytes(session: Session, user: str) -> int:
    """The bytes of all artefacts of a user's jobs, on all servers."""
    total = sa.select(sa.func.coalesce(sa.func.sum(ArtefactRow.nbytes), 0))
    alive = ArtefactRow.expires_ms > now_ms()
    return int(session.scalars(total.where(ArtefactRow.user_name == user, alive)).one())


def bytes_by_user(session: Session, user: str | None) -> dict[str, int]:
    """The bytes of all artefacts of each user's jobs, or only of one user's."""
    query = sa.select(ArtefactRow.user_name, sa.func.sum(ArtefactRow.nbytes))
    query = query.where(ArtefactRow.expires_ms > now_ms())
    if user is not None:
        query = query.where(ArtefactRow.user_name == user)
    rows = session.execute(query.group_by(ArtefactRow.user_name))
    return {name: int(nbytes) for name, nbytes in rows}


def of_job(session: Session, job: Job) -> Sequence[ArtefactRow]:
    """The artefacts of a job that have not expired, by case and name.

    Those that are about the whole job come first.
    """
    query = sa.select(ArtefactRow).where(
        ArtefactRow.job_number == job.number, ArtefactRow.expires_ms > now_ms()
    )
    rows = session.scalars(query).all()
    return sorted(rows, key=_place)


def find(session: Session, job: Job, name: str) -> ArtefactRow:
    """One artefact of a job.

    Raises:
        NotFound: the job has none of this name, or it has expired.
    """
    row = session.get(ArtefactRow, (job.number, name)) if "\0" not in name else None
    if row is None or row.expires_ms <= now_ms():
        raise NotFound(
            f"the job {job.id} has no artefact {brief(name)}, or it has expired", field="name"
        )
    return row


def delete(session: Session, row: ArtefactRow) -> None:
    """Delete an artefact's row; the object keeps its values."""
    session.delete(row)
    session.flush()


def described(row: ArtefactRow) -> Artefact:
    """An artefact as the API shows it."""
    return checked(
        Artefact,
        {
            "name": row.name,
            "kind": row.kind,
            "position": row.position,
            "implementation": row.implementation,
            "media_type": row.media_type,
            "nbytes": row.nbytes,
            "sha256": row.sha256,
            "node": row.node,
            "created_at": moment(row.created_ms),
            "expires_at": moment(row.expires_ms),
            "error": row.error,
        },
    )


def delete_expired(session: Session) -> None:
    """Delete the rows of artefacts that have expired, whichever server has their files."""
    expired = sa.delete(ArtefactRow).where(ArtefactRow.expires_ms <= now_ms())
    session.execute(expired.execution_options(synchronize_session=False))


def count_expired(session: Session) -> int:
    """How many rows `delete_expired` would delete."""
    query = sa.select(sa.func.count()).select_from(ArtefactRow)
    return session.scalars(query.where(ArtefactRow.expires_ms <= now_ms())).one()


def delete_of_jobs(session: Session, numbers: Collection[int]) -> None:
    """Delete the rows of all artefacts of jobs; a sweep deletes their files."""
    theirs = sa.delete(ArtefactRow).where(ArtefactRow.job_number.in_(numbers))
    session.execute(theirs.execution_options(synchronize_session=False))


def known_files(session: Session, names: Collection[str]) -> Sequence[str]:
    """Which of these names of files have rows."""
    return session.scalars(sa.select(ArtefactRow.file).where(ArtefactRow.file.in_(names))).all()


def adopt(session: Session, names: Collection[str], node: str) -> None:
    """Write that this server has these files. Its id can change when its machine restarts."""
    theirs = sa.and_(ArtefactRow.file.in_(names), ArtefactRow.node != node)
    update = sa.update(ArtefactRow).where(theirs).values(node=node)
    session.execute(update.execution_options(synchronize_session=False))


def _place(row: ArtefactRow) -> tuple[int, str]:
    return -1 if row.position is None else row.position, row.name
