"""What the routes and pages of share links call."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from warpcall.errors import NotFound
from warpcall.jobs import NewShare, Share, SharedJobs, ShareList
from warpcall_bench.jobs.service import JobService
from warpcall_bench.shares import database
from warpcall_bench.shares.database import Found, Shared
from warpcall_bench.shares.models import ShareRequest
from warpcall_service.extension import Accounts
from warpcall_service.formats.payloads import checked
from warpcall_service.http.exchange import Exchange
from warpcall_service.identity import GUEST, Caller
from warpcall_service.store.times import moment

PATH = "/share/"  # of the page that a link leads to


class ShareService:
    """All operations on share links.

    Args:
        accounts: counts wrong links against the address that sends them.
    """

    def __init__(self, jobs: JobService, accounts: Accounts) -> None:
        self._jobs = jobs
        self._accounts = accounts

    async def create(self, caller: Caller, job_id: str, request: ShareRequest) -> NewShare:
        """Create a link to a job of the caller, or to its comparison with another one.

        Raises:
            NotFound, Forbidden: the caller may not read, or not change, one of the jobs.
            InvalidInput: one of the jobs is private.
            TooLarge: the user has too many links.
        """

        def write(session: Session) -> NewShare:
            found, token = database.create(
                session, caller, job_id, request.other, request.expires_s
            )
            return checked(NewShare, {**_fields(found), "url": f"{PATH}{token}"})

        return await self._jobs.write(write)

    async def list(
        self, caller: Caller, job_id: str | None = None, user: str | None = None
    ) -> ShareList:
        """The links that the caller may revoke, of one job or one user if these are given.

        Raises:
            NotFound, Forbidden: the caller may not read, or not change, the job.
        """

        def read(session: Session) -> ShareList:
            found = database.listed(session, caller, job_id, user)
            return ShareList(shares=described(found))

        return await self._jobs.read(caller, read)

    async def revoke(self, caller: Caller, share_id: str) -> None:
        """Revoke a link, at once and for ever.

        Raises:
            NotFound: there is no such link, or the caller may not revoke it.
        """
        await self._jobs.write(lambda session: database.revoke(session, caller, share_id))

    async def open(self, exchange: Exchange, token: str) -> Shared:
        """What the token of a link opens. Its `caller` reads the jobs, and nothing else.

        Raises:
            NotFound: it opens nothing.
            Busy: too many wrong links or keys came from this address.
        """
        found = await self._jobs.read(GUEST, database.open_link, token)
        if found is None:
            self._accounts.count_wrong_link(exchange)
            raise NotFound("this share link does not exist, has expired or was revoked")
        return found

    async def show(self, exchange: Exchange, token: str) -> SharedJobs:
        """The job or the two jobs of a link.

        Raises:
            NotFound, Busy: as `open`.
        """
        found = await self.open(exchange, token)
        other = None
        if found.other_id is not None:
            other = await self._jobs.find(found.caller, found.other_id)
        return SharedJobs(
            job=await self._jobs.find(found.caller, found.job_id),
            other=other,
            expires_at=None if found.expires_at is None else moment(1000 * found.expires_at),
        )


def described(found: Sequence[Found]) -> list[Share]:
    """Links as lists show them, without what opens them."""
    return [checked(Share, _fields(one)) for one in found]


def _fields(found: Found) -> dict[str, object]:
    share, job_id, other_id = found
    return {
        "id": share.id,
        "job": job_id,
        "other": other_id,
        "user": share.user_name,
        "created_at": moment(1000 * share.created_at),
        "expires_at": None if share.expires_at is None else moment(1000 * share.expires_at),
    }
