"""Uploaded source in the database: implementations and problems, each name in versions.

Every function takes a session and blocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session

from warpcall.errors import Forbidden, InvalidInput, NotFound, TooLarge, Unavailable
from warpcall_bench.jobs.tables import Job
from warpcall_bench.uploads import files
from warpcall_bench.uploads.new_versions import (
    NAME,
    NBYTES,
    VERSIONS,
    NewImplementation,
    NewVersion,
    Quota,
)
from warpcall_bench.uploads.tables import JobUpload, StoredProblem, Uploaded, UploadedVersion
from warpcall_bench.words import words_of
from warpcall_service.auth.users import lock_user
from warpcall_service.identity import LOCAL, Caller
from warpcall_service.store.times import now_ms
from warpcall_service.text import brief

USER = r"[a-z0-9][a-z0-9._@-]{0,63}"
VERSION = r"[0-9a-f]{8,64}"
# A user's name may contain "@", but no "/"; the name of what was uploaded contains neither.
REFERENCE = re.compile(rf"(?P<user>{USER})/(?P<name>{NAME})(@(?P<version>{VERSION}))?")
CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")
SHOWN_DIGITS = 12  # of a version
TABLES: Sequence[type[Uploaded]] = (UploadedVersion, StoredProblem)

Row = TypeVar("Row", bound=Uploaded)


@dataclass(frozen=True, slots=True)
class UploadFilter:
    """Which uploads to list; None means any. Only implementations have an op.

    All `words` are in the user, the name, the op or the first line of the upload. A `sort` is one of
    "name", "op" and "uploaded", after a - for the largest or latest first.
    """

    op: str | None = None
    user: str | None = None
    before: str | None = None
    limit: int = 50
    words: str = ""
    sort: str = "-uploaded"


class Versions(Generic[Row]):
    """The stored uploads of one kind. What a caller may not read is left out of every answer.

    Args:
        table: their table.
        kind: what one of them is, for messages.
        needed: the column with the numbers of the rows that unfinished jobs need.
    """

    def __init__(self, table: type[Row], kind: str, needed: InstrumentedAttribute[Any]) -> None:
        self._table = table
        self._kind = kind
        self._needed = needed
        self._latest_first: Sequence[Any] = (table.latest_ms.desc(), table.number.desc())

    def find_stored(self, session: Session, caller: Caller, new: NewVersion) -> Row | None:
        """The caller's version with the same name and source, unless it is deleted."""
        row = self._version(session, caller, new)
        return row if row is not None and row.deleted_ms is None else None

    def of_source(self, session: Session, caller: Caller, sha256: str) -> Sequence[Row]:
        """The caller's versions with this hash, under any name, unless they are deleted."""
        table = self._table
        return session.scalars(
            sa.select(table).where(
                table.user_name == caller.name, table.sha256 == sha256, table.deleted_ms.is_(None)
            )
        ).all()

    def store(
        self,
        session: Session,
        caller: Caller,
        new: NewVersion,
        checked: Mapping[str, str] | None,
        quota: Quota,
        *,
        private: bool = False,
    ) -> tuple[Row, bool]:
        """Store a version as the latest one of its name.

        Args:
            checked: columns from the check of the source, such as `doc`; None if it was not
                checked, because it was stored before.
            private: whether the first version of a name is private by default.

        Returns:
            The version, and whether it is new.

        Raises:
            Forbidden: the user was disabled meanwhile.
            Unavailable: it was not checked, and was deleted meanwhile.
            InvalidInput, TooLarge: as `check_room`, and as `files.attach`.
        """
        _lock_user(session, caller)
        row = self._version(session, caller, new)
        created = row is None or row.deleted_ms is not None
        if created:
            if checked is None:
                raise Unavailable(
                    f"{caller.name}/{new.name} was deleted at the same time", retry_after_s=1
                )
            if row is not None:  # deleted, and still needed by a job: it counts already
                row.deleted_ms = None
                session.flush()
            else:
                check_room(session, caller, new, quota)
        latest = self.latest(session, caller, caller.name, new.name)
        before = row if row is not None and not created else latest
        if new.private is not None:
            private = new.private
        elif before is not None:
            private = before.private
        now, is_new_row = now_ms(), row is None
        if row is None:
            row = self._table(
                user_name=caller.name,
                name=new.name,
                sha256=new.sha256,
                source=new.source,
                nbytes=new.nbytes,
                created_ms=now,
                **new.identity,
            )
            session.add(row)
        row.private = private
        for column, value in (checked or {}).items():
            setattr(row, column, value)
        if latest is not row:
            row.latest_ms = now if latest is None else max(now, latest.latest_ms + 1)
        session.flush()
        if isinstance(row, UploadedVersion) and isinstance(new, NewImplementation) and is_new_row:
            files.attach(session, row, new.tree)
        return row, created

    def find(
        self, session: Session, caller: Caller, user: str, name: str, version: str | None
    ) -> Row:
        """A version that the caller may read; without `version` the latest.

        Raises:
            NotFound: there is none, it is deleted, or it is private to another user.
        """
        full = f"{user}/{name}" if version is None else f"{user}/{name}@{version}"
        row = self.named(session, caller, full)
        if row is None:
            raise NotFound(
                f"there is no {self._kind} {brief(full)}, or it is not yours to read", field="name"
            )
        return row

    def named(
        self, session: Session, caller: Caller, reference: str, *, lock: bool = False
    ) -> Row | None:
        """The latest version that the caller may read of a name as jobs have it.

        Args:
            reference: such as "ann/mine", or "ann/mine@3f2a91c0" for the latest of the versions that
                begin so.
            lock: keep the row from being deleted until the transaction ends.
        """
        parts = REFERENCE.fullmatch(reference)
        if parts is None:
            return None
        version = parts["version"] or ""
        return self.latest(session, caller, parts["user"], parts["name"], version, lock=lock)

    def latest(
        self,
        session: Session,
        caller: Caller,
        user: str,
        name: str,
        version: str = "",
        *,
        lock: bool = False,
    ) -> Row | None:
        """The latest version that the caller may read and that begins with `version`."""
        query = sa.select(self._table).where(*self._of(user, name), self.readable(caller))
        query = query.order_by(*self._latest_first).limit(1)
        if version:
            query = query.where(self._table.sha256.startswith(version, autoescape=True))
        if lock:
            query = query.with_for_update(read=True)
        return session.scalars(query).first()

    def all(self, session: Session, caller: Caller, user: str, name: str) -> Sequence[Row]:
        """All versions of a name that the caller may read, the latest first."""
        query = sa.select(self._table).where(*self._of(user, name), self.readable(caller))
        return session.scalars(query.order_by(*self._latest_first)).all()

    def page(
        self, session: Session, caller: Caller, wanted: UploadFilter
    ) -> tuple[Sequence[Row], str | None]:
        """The latest version of each name that the caller may read, the one uploaded last first.

        Returns:
            At most `limit` versions, and the value of `before` that lists what comes after them;
            None if nothing does.

        Raises:
            InvalidInput: `before` is no cursor.
        """
        table = self._table
        rank = sa.func.row_number().over(
            partition_by=(table.user_name, table.name), order_by=self._latest_first
        )
        ranked = (
            sa.select(table.number, rank.label("rank"))
            .where(table.deleted_ms.is_(None), self.readable(caller))
            .subquery()
        )
        query = sa.select(table).join(ranked, ranked.c.number == table.number)
        query = query.where(ranked.c.rank == 1)
        label, descends = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
        by = self._order(label)
        for word in words_of(wanted.words):
            texts = [table.user_name + "/" + table.name, table.doc]
            if table is UploadedVersion:
                texts.append(UploadedVersion.op)
            query = query.where(sa.or_(*(text.icontains(word, autoescape=True) for text in texts)))
        if wanted.op is not None:
            query = query.where(UploadedVersion.op == wanted.op)
        if wanted.user is not None:
            query = query.where(table.user_name == wanted.user)
        if wanted.before is not None:
            parts = CURSOR.fullmatch(wanted.before)
            if parts is None:
                raise InvalidInput(
                    f"before must be the `next` of a page, got {brief(wanted.before)}",
                    field="before",
                )
            at = sa.tuple_(table.latest_ms, table.number)
            last = sa.tuple_(int(parts[1]), int(parts[2]))
            if by is None:
                query = query.where(at < last if descends else at > last)
            else:
                value = sa.select(by).where(table.number == int(parts[2])).correlate(None)
                known = value.scalar_subquery()
                beyond = by < known if descends else by > known
                query = query.where(sa.or_(beyond, sa.and_(by == known, at < last)))
        if by is not None:
            query = query.order_by(by.desc() if descends else by, *self._latest_first)
        elif descends:
            query = query.order_by(*self._latest_first)
        else:
            query = query.order_by(table.latest_ms, table.number)
        query = query.limit(wanted.limit + 1)
        found = session.scalars(query).all()
        page = found[: wanted.limit]
        following = f"{page[-1].latest_ms}-{page[-1].number}" if len(found) > len(page) else None
        return page, following

    def _order(self, label: str) -> sa.ColumnElement[str] | None:
        """By what a list is sorted; None for the time of the latest version."""
        if label == "name":
            return self._table.user_name + "/" + self._table.name
        return UploadedVersion.op.expression if label == "op" else None

    def delete(
        self, session: Session, caller: Caller, user: str, name: str, version: str | None
    ) -> None:
        """Delete a version, or without `version` all of them.

        They disappear at once. The sources that unfinished jobs need are kept until these end.

        Raises:
            NotFound: as `find`.
            Forbidden: the caller is neither their user nor an administrator.
        """
        row = self.find(session, caller, user, name, version)
        if not caller.owns(user):
            raise Forbidden(f"only {user} and administrators may delete {user}/{name}")
        rows = [row] if version else self.all(session, caller, user, name)
        chosen = [row.number for row in rows]
        session.execute(
            sa.update(self._table).where(self._table.number.in_(chosen)).values(deleted_ms=now_ms())
        )
        self.erase(session, chosen)

    def erase(self, session: Session, numbers: Sequence[int]) -> None:
        """Erase those of the rows that are deleted and that no job needs."""
        needed = sa.select(self._needed).where(self._needed.in_(numbers))
        session.execute(
            sa.delete(self._table)
            .where(
                self._table.number.in_(numbers),
                self._table.deleted_ms.is_not(None),
                self._table.number.not_in(needed),
            )
            .execution_options(synchronize_session=False)
        )

    def _version(self, session: Session, caller: Caller, new: NewVersion) -> Row | None:
        """The caller's row with the same name and source, even if it is deleted."""
        return session.scalars(
            sa.select(self._table).where(
                self._table.user_name == caller.name,
                self._table.name == new.name,
                self._table.sha256 == new.sha256,
            )
        ).one_or_none()

    def _of(self, user: str, name: str) -> Sequence[sa.ColumnElement[bool]]:
        table = self._table
        return table.user_name == user, table.name == name, table.deleted_ms.is_(None)

    def readable(self, caller: Caller) -> sa.ColumnElement[bool]:
        """Whether the caller may read a row."""
        if caller.may("admin"):
            return sa.true()
        return sa.or_(self._table.private.is_(False), self._table.user_name == caller.name)


IMPLEMENTATIONS = Versions(UploadedVersion, "implementation", JobUpload.upload_number)
PROBLEMS = Versions(StoredProblem, "problem", Job.problem_number)


def check_room(session: Session, caller: Caller, new: NewVersion, quota: Quota) -> None:
    """Check that an upload may be stored, before its source is checked.

    Raises:
        InvalidInput: the name is that of the caller's implementation of another op.
        TooLarge: the caller would have too many versions, or too many bytes.
    """
    if isinstance(new, NewImplementation):
        _check_op(session, caller, new)
    versions, nbytes = 0, files.nbytes_of(session, caller.name)
    for table in TABLES:
        # Deleted ones, too, while jobs need them.
        counts = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.nbytes), 0))
        row = session.execute(counts.where(table.user_name == caller.name)).one()
        versions, nbytes = versions + row[0], nbytes + int(row[1])
    if versions >= quota.versions:
        raise TooLarge(
            f"{caller.name} has {versions} versions of implementations and problems stored, at "
            f"most {quota.versions} are allowed by the quota {VERSIONS}; delete some",
            field="source",
        )
    _check_nbytes(caller, nbytes, new.nbytes, quota, "source")


def store_file(session: Session, caller: Caller, sha256: str, content: bytes, quota: Quota) -> bool:
    """Store a file for uploads of several files; returns whether it is new.

    Raises:
        Forbidden: the user was disabled meanwhile.
        TooLarge: the user would have too many bytes.
    """
    _lock_user(session, caller)
    if files.missing(session, caller.name, [sha256]):
        _, nbytes = use_by_user(session, caller.name).get(caller.name, (0, 0))
        _check_nbytes(caller, nbytes, len(content) + files.ROW_BYTES, quota, "body")
    return files.store(session, caller.name, sha256, content)


def _check_nbytes(caller: Caller, stored: int, more: int, quota: Quota, field: str) -> None:
    if stored + more > quota.nbytes:
        raise TooLarge(
            f"{caller.name} has {stored} bytes of implementations and problems stored, with this "
            f"{'source' if field == 'source' else 'file'} they would be {stored + more}, at most "
            f"{quota.nbytes} are allowed by the quota {NBYTES}; delete some",
            field=field,
        )


def _check_op(session: Session, caller: Caller, new: NewImplementation) -> None:
    other = session.scalars(
        sa.select(UploadedVersion.op)
        .where(
            UploadedVersion.user_name == caller.name,
            UploadedVersion.name == new.name,
            UploadedVersion.deleted_ms.is_(None),
            UploadedVersion.op != new.op,
        )
        .limit(1)
    ).first()
    if other is not None:
        raise InvalidInput(
            f"{caller.name}/{new.name} is an implementation of {other}; give this one another name",
            field="name",
        )


def _lock_user(session: Session, caller: Caller) -> None:
    """Let one upload of a user be stored at a time.

    Raises:
        Forbidden: the user is disabled.
    """
    user = lock_user(session, caller.name)
    if caller.name != LOCAL.name and (user is None or user.disabled_at is not None):
        raise Forbidden(f"the user {caller.name} is disabled")


def use_by_user(session: Session, user: str | None) -> dict[str, tuple[int, int]]:
    """The number and the bytes of what counts against each user's quotas, or only one user's:
    implementations and problems, deleted ones, too, while jobs need them, and files for them."""
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for table in TABLES:
        query = sa.select(table.user_name, sa.func.count(), sa.func.sum(table.nbytes))
        if user is not None:
            query = query.where(table.user_name == user)
        for name, count, nbytes in session.execute(query.group_by(table.user_name)):
            found[name][0] += count
            found[name][1] += int(nbytes)
    stored = files.nbytes_by_user(session)
    for name in stored if user is None else {user} & {*stored}:
        found[name][1] += stored[name]
    return {name: (versions, nbytes) for name, (versions, nbytes) in found.items()}


def stored_by_user(session: Session) -> Sequence[tuple[str, int, int]]:
    """The number and the bytes of the uploaded implementations of each user who has some."""
    columns = (UploadedVersion.user_name, sa.func.count(), sa.func.sum(UploadedVersion.nbytes))
    found = session.execute(sa.select(*columns).group_by(UploadedVersion.user_name))
    return [(name, count, int(nbytes)) for name, count, nbytes in found]
