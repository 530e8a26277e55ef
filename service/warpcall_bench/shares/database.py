"""Share links in the database. Every function takes a session and blocks."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from warpcall.errors import InvalidInput, NotFound, TooLarge
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.shares.tables import ShareLink
from warpcall_service.auth.tables import User
from warpcall_service.identity import Caller, guest
from warpcall_service.store import ids
from warpcall_service.text import brief

MAX_SHARES = 200  # links of one user that have not expired
ID = re.compile(r"[0-9a-f]{4,16}")  # the whole id has 16 digits
TOKEN = re.compile(r"sh_[A-Za-z0-9_-]{43}")

OtherJob = aliased(Job)
Found = tuple[ShareLink, str, str | None]  # a link, and the ids of its jobs


@dataclass(frozen=True, slots=True)
class Shared:
    """What a share link opens.

    Attributes:
        caller: may read the jobs of the link and nothing else.
        job_id: the job, or the first one of a comparison; `other_id` is the second one.
        expires_at: in seconds since 1970; None if the link does not expire.
    """

    caller: Caller
    job_id: str
    other_id: str | None
    expires_at: int | None


def create(
    session: Session, caller: Caller, job_id: str, other_id: str | None, lifetime_s: float | None
) -> tuple[Found, str]:
    """Create a share link. Its token is returned once and not stored.

    Raises:
        NotFound, Forbidden: the caller may not read, or not change, one of the jobs.
        InvalidInput: one of the jobs is private.
        TooLarge: the user has too many links.
    """
    jobs = [submissions.find_own(session, caller, one) for one in (job_id, other_id) if one]
    for job in jobs:
        if job.private:
            raise InvalidInput(
                f"the job {job.id} is private, so no link can show it; let all users read it first",
                field="id",
            )
    now = int(time.time())
    session.execute(sa.delete(ShareLink).where(ShareLink.expires_at <= now))
    number = session.scalars(
        sa.select(sa.func.count()).select_from(ShareLink).where(ShareLink.user_name == caller.name)
    ).one()
    if number >= MAX_SHARES:
        raise TooLarge(
            f"{caller.name} has {number} share links, at most {MAX_SHARES} are allowed; revoke some"
        )
    token = f"sh_{secrets.token_urlsafe(32)}"
    share = ShareLink(
        id=secrets.token_hex(8),
        digest=_digest(token),
        user_name=caller.name,
        job_number=jobs[0].number,
        other_number=jobs[1].number if len(jobs) > 1 else None,
        created_at=now,
        expires_at=None if lifetime_s is None else now + max(1, round(lifetime_s)),
    )
    session.add(share)
    session.flush()
    return (share, jobs[0].id, jobs[1].id if len(jobs) > 1 else None), token


def listed(
    session: Session, caller: Caller, job_id: str | None, user: str | None
) -> Sequence[Found]:
    """Links that have not expired and that the caller may revoke, the latest first.

    Args:
        job_id: only links to this job.
        user: only links that this user made; None means any.

    Raises:
        NotFound, Forbidden: the caller may not read, or not change, the job.
    """
    query = _links().where(_revocable(caller), _alive())
    if job_id is not None:
        number = submissions.find_own(session, caller, job_id).number
        query = query.where(
            sa.or_(ShareLink.job_number == number, ShareLink.other_number == number)
        )
    if user is not None:
        query = query.where(ShareLink.user_name == user)
    query = query.order_by(ShareLink.created_at.desc(), ShareLink.id)
    return [(share, first, other) for share, first, other in session.execute(query)]


def revoke(session: Session, caller: Caller, share_id: str) -> None:
    """Revoke the link whose id is, or begins with, `share_id`.

    Whoever made it, the users of its jobs and administrators may.

    Raises:
        NotFound: there is no such link, or the caller may not revoke it.
        InvalidInput: the ids of several links that the caller may revoke begin so.
    """
    query = _links().where(_revocable(caller))
    found = ids.find(session, query, ShareLink.id, share_id, ID, "links")
    if found is None:
        raise NotFound(f"there is no share link {brief(share_id)}, or it is not yours", field="id")
    session.delete(found[0])


def open_link(session: Session, token: str) -> Shared | None:
    """What a token opens; None if it opens nothing, whatever the reason.

    A link opens nothing while one of its jobs is private, or while the user who made it is
    disabled.
    """
    if not TOKEN.fullmatch(token):
        return None
    found = session.execute(
        _links().where(
            ShareLink.digest == _digest(token),
            _alive(),
            Job.private.is_(False),
            sa.or_(ShareLink.other_number.is_(None), OtherJob.private.is_(False)),
            ShareLink.user_name.not_in(sa.select(User.name).where(User.disabled_at.is_not(None))),
        )
    ).first()
    if found is None:
        return None
    share, first, other = found
    jobs = frozenset(one for one in (first, other) if one)
    return Shared(guest(share.id, jobs), first, other, share.expires_at)


def _links() -> sa.Select[ShareLink, str, str]:
    return (
        sa.select(ShareLink, Job.id, OtherJob.id)
        .join(Job, Job.number == ShareLink.job_number)
        .outerjoin(OtherJob, OtherJob.number == ShareLink.other_number)
    )


def _alive() -> sa.ColumnElement[bool]:
    return sa.or_(ShareLink.expires_at.is_(None), ShareLink.expires_at > int(time.time()))


def _revocable(caller: Caller) -> sa.ColumnElement[bool]:
    if caller.may("admin"):
        return sa.true()
    owners = (ShareLink.user_name, Job.user_name, OtherJob.user_name)
    return sa.or_(*(owner == caller.name for owner in owners))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def delete_of_jobs(session: Session, numbers: Collection[int]) -> None:
    """Delete all links that show one of these jobs."""
    shown = sa.or_(ShareLink.job_number.in_(numbers), ShareLink.other_number.in_(numbers))
    delete = sa.delete(ShareLink).where(shown)
    session.execute(delete.execution_options(synchronize_session=False))
