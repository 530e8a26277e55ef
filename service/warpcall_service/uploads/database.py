"""Uploaded implementations in the database. Every function takes a session and blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Forbidden, InvalidInput, NotFound, TooLarge, Unavailable
from warpcall_service.identity import LOCAL, Caller
from warpcall_service.runs.messages import version_of
from warpcall_service.store.tables import Change, JobUpload, UploadedVersion, User
from warpcall_service.store.times import now_ms
from warpcall_service.text import brief

USER = r"[a-z0-9][a-z0-9._@-]{0,63}"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}"
VERSION = r"[0-9a-f]{8,64}"
# A user's name may contain "@", but no "/"; the name of an implementation contains neither.
REFERENCE = re.compile(rf"(?P<user>{USER})/(?P<name>{NAME})(@(?P<version>{VERSION}))?")
CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")
SHOWN_DIGITS = 12  # of a version


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on what one user may have stored."""

    versions: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class NewVersion:
    """An upload that was accepted. If `private` is None, it is as private as the one before it."""

    op: str
    function: str
    name: str
    source: str
    private: bool | None

    @property
    def sha256(self) -> str:
        return version_of(self.op, self.function, self.source)

    @property
    def nbytes(self) -> int:
        return len(self.source.encode())


@dataclass(frozen=True, slots=True)
class Filter:
    """Which implementations to list; None means any."""

    op: str | None = None
    user: str | None = None
    before: str | None = None
    limit: int = 50


def find_stored(session: Session, caller: Caller, new: NewVersion) -> UploadedVersion | None:
    """The caller's version with the same name and source, unless it is deleted."""
    row = _version(session, caller, new)
    return row if row is not None and row.deleted_ms is None else None


def check_room(session: Session, caller: Caller, new: NewVersion, quota: Quota) -> None:
    """Check that an upload may be stored, before its source is checked.

    Raises:
        InvalidInput: the name is that of the caller's implementation of another op.
        TooLarge: the caller would have too many versions, or too many bytes.
    """
    other = session.scalars(
        sa.select(UploadedVersion.op)
        .where(*_of(caller.name, new.name), UploadedVersion.op != new.op)
        .limit(1)
    ).first()
    if other is not None:
        raise InvalidInput(
            f"{caller.name}/{new.name} is an implementation of {other}; give this one another name",
            field="name",
        )
    versions, nbytes = session.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(UploadedVersion.nbytes), 0)).where(
            UploadedVersion.user_name == caller.name  # deleted ones too, while jobs need them
        )
    ).one()
    if versions >= quota.versions:
        raise TooLarge(
            f"{caller.name} has {versions} versions of implementations stored, at most "
            f"{quota.versions} are allowed; delete some",
            field="source",
        )
    if int(nbytes) + new.nbytes > quota.nbytes:
        raise TooLarge(
            f"{caller.name} has {nbytes} bytes of implementations stored, with this source they "
            f"would be {int(nbytes) + new.nbytes}, at most {quota.nbytes} are allowed; delete some",
            field="source",
        )


def store(
    session: Session, caller: Caller, new: NewVersion, doc: str | None, quota: Quota
) -> tuple[UploadedVersion, bool]:
    """Store a version as the latest one of its name.

    Args:
        doc: from the check of the source; None if it was not checked, because it was stored before.

    Returns:
        The version, and whether it is new.

    Raises:
        Forbidden: the user was disabled meanwhile.
        Unavailable: it was not checked, and was deleted meanwhile.
        InvalidInput, TooLarge: as `check_room`.
    """
    _lock_user(session, caller)
    row = _version(session, caller, new)
    created = row is None or row.deleted_ms is not None
    if created:
        if doc is None:
            raise Unavailable(
                f"{caller.name}/{new.name} was deleted at the same time", retry_after_s=1
            )
        if row is not None:  # deleted, and still needed by a job: it counts already
            row.deleted_ms = None
            session.flush()
        else:
            check_room(session, caller, new, quota)
    latest = latest_version(session, caller, caller.name, new.name)
    private = new.private
    if private is None:
        before = row if row is not None and not created else latest
        private = before is not None and before.private
    now = now_ms()
    if row is None:
        row = UploadedVersion(
            user_name=caller.name,
            name=new.name,
            op=new.op,
            function=new.function,
            sha256=new.sha256,
            source=new.source,
            nbytes=new.nbytes,
            created_ms=now,
        )
        session.add(row)
    row.private = private
    if doc is not None:
        row.doc = doc
    if latest is not row:
        row.latest_ms = now if latest is None else max(now, latest.latest_ms + 1)
    session.flush()
    return row, created


def find(
    session: Session, caller: Caller, user: str, name: str, version: str | None
) -> UploadedVersion:
    """A version that the caller may read; without `version` the latest.

    Raises:
        NotFound: there is none, it is deleted, or it is private to another user.
    """
    full = f"{user}/{name}" if version is None else f"{user}/{name}@{version}"
    row = None
    if REFERENCE.fullmatch(full):
        row = latest_version(session, caller, user, name, version or "")
    if row is None:
        raise NotFound(
            f"there is no implementation {brief(full)}, or it is not yours to read", field="name"
        )
    return row


def versions(session: Session, caller: Caller, user: str, name: str) -> Sequence[UploadedVersion]:
    """All versions of a name that the caller may read, the latest first."""
    query = sa.select(UploadedVersion).where(*_of(user, name), _readable(caller))
    return session.scalars(query.order_by(*_LATEST_FIRST)).all()


def listed(session: Session, caller: Caller, wanted: Filter) -> Sequence[UploadedVersion]:
    """The latest version of each name that the caller may read, the one uploaded last first; one
    more than `limit` if there are more.

    Raises:
        InvalidInput: `before` is no cursor.
    """
    rank = sa.func.row_number().over(
        partition_by=(UploadedVersion.user_name, UploadedVersion.name), order_by=_LATEST_FIRST
    )
    ranked = (
        sa.select(UploadedVersion.number, rank.label("rank"))
        .where(UploadedVersion.deleted_ms.is_(None), _readable(caller))
        .subquery()
    )
    query = sa.select(UploadedVersion).join(ranked, ranked.c.number == UploadedVersion.number)
    query = query.where(ranked.c.rank == 1)
    if wanted.op is not None:
        query = query.where(UploadedVersion.op == wanted.op)
    if wanted.user is not None:
        query = query.where(UploadedVersion.user_name == wanted.user)
    if wanted.before is not None:
        parts = CURSOR.fullmatch(wanted.before)
        if parts is None:
            raise InvalidInput(
                f"before must be the `next` of a page, got {brief(wanted.before)}", field="before"
            )
        at = sa.tuple_(UploadedVersion.latest_ms, UploadedVersion.number)
        query = query.where(at < sa.tuple_(int(parts[1]), int(parts[2])))
    return session.scalars(query.order_by(*_LATEST_FIRST).limit(wanted.limit + 1)).all()


def cursor(row: UploadedVersion) -> str:
    """The value of `before` that lists what comes after a row."""
    return f"{row.latest_ms}-{row.number}"


def delete(session: Session, caller: Caller, user: str, name: str, version: str | None) -> None:
    """Delete a version, or without `version` all of them.

    They disappear at once. The sources that unfinished jobs need are kept until these end.

    Raises:
        NotFound: as `find`.
        Forbidden: the caller is neither their user nor an administrator.
    """
    row = find(session, caller, user, name, version)
    if caller.name != user and not caller.may("admin"):
        raise Forbidden(f"only {user} and administrators may delete {user}/{name}")
    chosen = (
        [row.number] if version else [row.number for row in versions(session, caller, user, name)]
    )
    session.execute(
        sa.update(UploadedVersion)
        .where(UploadedVersion.number.in_(chosen))
        .values(deleted_ms=now_ms())
    )
    erase(session, chosen)


def erase(session: Session, numbers: Sequence[int]) -> None:
    """Erase those of the rows that are deleted and that no job needs."""
    needed = sa.select(JobUpload.upload_number).where(JobUpload.upload_number.in_(numbers))
    session.execute(
        sa.delete(UploadedVersion)
        .where(
            UploadedVersion.number.in_(numbers),
            UploadedVersion.deleted_ms.is_not(None),
            UploadedVersion.number.not_in(needed),
        )
        .execution_options(synchronize_session=False)
    )


def _lock_user(session: Session, caller: Caller) -> None:
    """Let one upload of a user be stored at a time, also by servers that share the database.

    Raises:
        Forbidden: the user is disabled.
    """
    if caller.name == LOCAL.name:
        # That user has no row. This one is locked by administrators only, and for a short time.
        session.get(Change, 1, with_for_update={"key_share": True})
        return
    user = session.get(User, caller.name, with_for_update={"key_share": True})
    if user is None or user.disabled_at is not None:
        raise Forbidden(f"the user {caller.name} is disabled")


def _version(session: Session, caller: Caller, new: NewVersion) -> UploadedVersion | None:
    return session.scalars(
        sa.select(UploadedVersion).where(
            UploadedVersion.user_name == caller.name,
            UploadedVersion.name == new.name,
            UploadedVersion.sha256 == new.sha256,
        )
    ).one_or_none()


def latest_version(
    session: Session,
    caller: Caller,
    user: str,
    name: str,
    version: str = "",
    *,
    lock: bool = False,
) -> UploadedVersion | None:
    """The latest version that the caller may read and that begins with `version`."""
    query = (
        sa.select(UploadedVersion)
        .where(*_of(user, name), _readable(caller))
        .order_by(*_LATEST_FIRST)
        .limit(1)
    )
    if version:
        query = query.where(UploadedVersion.sha256.startswith(version, autoescape=True))
    if lock:
        query = query.with_for_update(read=True)
    return session.scalars(query).first()


_LATEST_FIRST: Sequence[Any] = (UploadedVersion.latest_ms.desc(), UploadedVersion.number.desc())


def _of(user: str, name: str) -> Sequence[sa.ColumnElement[bool]]:
    return (
        UploadedVersion.user_name == user,
        UploadedVersion.name == name,
        UploadedVersion.deleted_ms.is_(None),
    )


def _readable(caller: Caller) -> sa.ColumnElement[bool]:
    if caller.may("admin"):
        return sa.true()
    return sa.or_(UploadedVersion.private.is_(False), UploadedVersion.user_name == caller.name)
