"""The files of uploads of several files, in the database. Each user has files of their own.

Every function takes a session and blocks.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.runs.trees import SourceTree
from warpcall_bench.uploads.tables import JobFile, StoredFile, TreeFile, UploadedVersion
from warpcall_bench.uploads.trees import Tree
from warpcall_service.store.times import now_ms

KEPT_MS = 3_600_000  # for which a file is kept that no version needs
ROW_BYTES = (
    1 << 10
)  # that each file counts more than its content: so that small files are bounded, too
MOST_JOB_BYTES = 32 << 20  # of the files of all uploads in a job
AT_ONCE = 500  # files that one transaction deletes


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a version, without its content."""

    path: str
    sha256: str
    nbytes: int


def missing(session: Session, user: str, hashes: Collection[str]) -> list[str]:
    """Those hashes of which the user has no file, in their order. The files of others are kept for a
    while."""
    given = [*dict.fromkeys(hashes)]
    own = (StoredFile.user_name == user, StoredFile.sha256.in_(given))
    known = {*session.scalars(sa.select(StoredFile.sha256).where(*own))}
    session.execute(sa.update(StoredFile).where(*own).values(used_ms=now_ms()))
    return [one for one in given if one not in known]


def nbytes_of(session: Session, user: str) -> int:
    """What the files of a user count against the quota of bytes."""
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(StoredFile.nbytes), 0))
    count, nbytes = session.execute(query.where(StoredFile.user_name == user)).one()
    return int(nbytes) + ROW_BYTES * int(count)


def nbytes_by_user(session: Session) -> dict[str, int]:
    """As `nbytes_of`, for each user who has files."""
    columns = (StoredFile.user_name, sa.func.count(), sa.func.sum(StoredFile.nbytes))
    found = session.execute(sa.select(*columns).group_by(StoredFile.user_name))
    return {user: int(nbytes) + ROW_BYTES * int(count) for user, count, nbytes in found}


def store(session: Session, user: str, sha256: str, content: bytes) -> bool:
    """Store a file of a user, who is locked; returns whether it is new."""
    own = (StoredFile.user_name == user, StoredFile.sha256 == sha256)
    row = session.scalars(sa.select(StoredFile).where(*own)).one_or_none()
    if row is not None:
        row.used_ms = now_ms()
        return False
    session.add(
        StoredFile(
            user_name=user, sha256=sha256, nbytes=len(content), used_ms=now_ms(), content=content
        )
    )
    session.flush()
    return True


def read(session: Session, user: str, source: str, tree: Tree, most_bytes: int) -> SourceTree:
    """The files of an upload that a user sends, for a message.

    Raises:
        InvalidInput: the user has not sent one of the files.
        TooLarge: the files have more than `most_bytes` together.
    """
    if not tree.entry:
        return {"source": source}
    rows = _rows(session, user, tree.files)
    nbytes = len(source.encode()) + sum(rows[sha].nbytes for sha in tree.files.values())
    if nbytes > most_bytes:
        raise TooLarge(
            f"files: the files of an upload may have at most {most_bytes} bytes together, got {nbytes}",
            field="files",
        )
    contents = {sha: b64encode(row.content).decode() for sha, row in rows.items()}
    return {
        "source": source,
        "entry": tree.entry,
        "files": {**tree.files},
        "contents": contents,
    }


def tree_of_version(session: Session, row: UploadedVersion) -> SourceTree:
    """The files of a stored version, for a message."""
    if not row.entry:
        return {"source": row.source}
    found, contents = of_versions(session, [row.number])
    return {
        "source": row.source,
        "entry": row.entry,
        "files": found[row.number],
        "contents": {sha: b64encode(content).decode() for sha, content in contents.items()},
    }


def attach(session: Session, row: UploadedVersion, tree: Tree) -> None:
    """Let a new version have the files of its tree.

    Raises:
        InvalidInput: its user has not sent one of the files.
    """
    if not tree.entry:
        return
    rows = _rows(session, row.user_name, tree.files)
    row.files_nbytes = sum(rows[sha].nbytes for sha in tree.files.values())
    session.flush()
    session.add_all(
        TreeFile(upload_number=row.number, path=path, file_number=rows[sha].number)
        for path, sha in tree.files.items()
    )


def keep_for_job(
    session: Session, job_number: int, user: str, wanted: Mapping[str, str], most_bytes: int
) -> None:
    """Keep the files that a scratch run needs until `release_job`.

    Args:
        wanted: SHA-256 of each file, by its path.

    Raises:
        InvalidInput: the user has not sent one of the files.
        TooLarge: the files have more than `most_bytes` together.
    """
    rows = _rows(session, user, wanted)
    nbytes = sum(rows[sha].nbytes for sha in wanted.values())
    if nbytes > most_bytes:
        raise TooLarge(
            f"files: the files of a scratch run may have at most {most_bytes} bytes together, got "
            f"{nbytes}",
            field="files",
        )
    session.add_all(
        JobFile(job_number=job_number, path=path, file_number=rows[sha].number)
        for path, sha in wanted.items()
    )


def of_job(session: Session, job_number: int) -> tuple[dict[str, str], Mapping[str, bytes]]:
    """The files of an unfinished scratch run: the SHA-256 of each by its path, and each content once."""
    query = (
        sa.select(JobFile.path, StoredFile.sha256, StoredFile.content)
        .join(StoredFile, StoredFile.number == JobFile.file_number)
        .where(JobFile.job_number == job_number)
        .order_by(JobFile.path)
    )
    rows = session.execute(query).all()
    return {path: sha for path, sha, _ in rows}, {sha: content for _, sha, content in rows}


def release_job(session: Session, job_number: int) -> None:
    """Let the files of a scratch run that has ended be deleted."""
    session.execute(sa.delete(JobFile).where(JobFile.job_number == job_number))


def _rows(session: Session, user: str, wanted: Mapping[str, str]) -> dict[str, StoredFile]:
    hashes = {*wanted.values()}
    query = sa.select(StoredFile).where(StoredFile.user_name == user, StoredFile.sha256.in_(hashes))
    found = {row.sha256: row for row in session.scalars(query)}
    for path, sha in wanted.items():
        if sha not in found:
            raise InvalidInput(
                f"files: {path} with the SHA-256 {sha[:12]} has not been sent: send it with PUT "
                f"/v1/files/{sha}",
                field="files",
            )
    return found


def listed(session: Session, number: int) -> list[ListedFile]:
    """The files of a version besides its source, by path."""
    query = (
        sa.select(TreeFile.path, StoredFile.sha256, StoredFile.nbytes)
        .join(StoredFile, StoredFile.number == TreeFile.file_number)
        .where(TreeFile.upload_number == number)
        .order_by(TreeFile.path)
    )
    return [ListedFile(*row) for row in session.execute(query)]


def contents(
    session: Session, number: int, paths: Collection[str] | None = None
) -> dict[str, bytes]:
    """The content of each file of a version besides its source, or only of some, by path."""
    query = (
        sa.select(TreeFile.path, StoredFile.content)
        .join(StoredFile, StoredFile.number == TreeFile.file_number)
        .where(TreeFile.upload_number == number)
        .order_by(TreeFile.path)
    )
    if paths is not None:
        query = query.where(TreeFile.path.in_(paths))
    return {path: content for path, content in session.execute(query)}


def check_job(session: Session, rows: Collection[UploadedVersion]) -> None:
    """Raise TooLarge if the files of the uploads of a job are too many bytes together."""
    numbers = [row.number for row in rows if row.entry]
    if not numbers:
        return
    query = (
        sa.select(StoredFile.sha256, StoredFile.nbytes)
        .join(TreeFile, TreeFile.file_number == StoredFile.number)
        .where(TreeFile.upload_number.in_(numbers))
        .distinct()
    )
    nbytes = sum(nbytes for _, nbytes in session.execute(query))
    if nbytes > MOST_JOB_BYTES:
        raise TooLarge(
            f"implementations: the files of the uploads of a job may have at most "
            f"{MOST_JOB_BYTES >> 20} MiB together, equal ones counted once, got {nbytes} bytes",
            field="implementations",
        )


def of_versions(
    session: Session, numbers: Sequence[int]
) -> tuple[dict[int, dict[str, str]], Mapping[str, bytes]]:
    """The files of versions: the SHA-256 of each by version and path, and each content once."""
    query = sa.select(TreeFile.upload_number, TreeFile.path, StoredFile.sha256).join(
        StoredFile, StoredFile.number == TreeFile.file_number
    )
    found: dict[int, dict[str, str]] = {}
    for number, path, sha in session.execute(query.where(TreeFile.upload_number.in_(numbers))):
        found.setdefault(number, {})[path] = sha
    needed = sa.select(TreeFile.file_number).where(TreeFile.upload_number.in_(numbers))
    rows = sa.select(StoredFile.sha256, StoredFile.content).where(StoredFile.number.in_(needed))
    return found, {sha: content for sha, content in session.execute(rows)}


def _unneeded() -> sa.Select[int]:
    of_version = sa.exists().where(TreeFile.file_number == StoredFile.number)
    of_job = sa.exists().where(JobFile.file_number == StoredFile.number)
    old = StoredFile.used_ms < now_ms() - KEPT_MS
    return sa.select(StoredFile.number).where(old, ~of_version, ~of_job)


def delete_unneeded(session: Session) -> bool:
    """Delete some of the files that nothing has needed for a while; whether there may be more."""
    numbers = session.scalars(_unneeded().limit(AT_ONCE)).all()
    session.execute(sa.delete(StoredFile).where(StoredFile.number.in_(numbers)))
    return len(numbers) == AT_ONCE
