"""What the routes call: every operation on groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from sqlalchemy.orm import Session

from warpcall.groups import GroupInfo, SubmittedGroup
from warpcall_bench.groups import answers, database
from warpcall_bench.groups.models import GroupRequest
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.exports import Step
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.service import JobService
from warpcall_service.identity import Caller
from warpcall_service.quotas import Quotas


class GroupService:
    """All operations on groups, for the routes."""

    def __init__(self, jobs: JobService, quotas: Quotas) -> None:
        self._jobs = jobs
        self._quotas = quotas

    @property
    def devices(self) -> Devices:
        """The devices that jobs can run on."""
        return self._jobs.scheduler.devices

    async def submit(
        self,
        caller: Caller,
        request: GroupRequest,
        idempotency_key: str | None,
        traceparent: str = "",
    ) -> SubmittedGroup:
        """Queue a job for each model, or find the group that answers the request.

        Raises:
            InvalidInput, Busy, Forbidden, Unavailable: as `JobService.submit`. A model that no
                server has is no error, unless this holds for all of them.
        """
        if request.job.priority == "high":
            caller.check("admin")
        known = await self._jobs.read(caller, self._repeated, caller, request, idempotency_key)
        if known is not None:
            return known
        self._quotas.check_device_time(caller.name)
        checked = await self._jobs.check_each(caller, request.job, request.parts())
        devices = self.devices
        limit = self._quotas.count(caller.name, submissions.QUOTA)
        private = self._jobs.private_by_default

        def submit(session: Session) -> tuple[SubmittedGroup, list[int]]:
            row, new, created = database.submit(
                session, caller, request, checked, idempotency_key, limit, private
            )
            for job in new:
                job.traceparent = traceparent or None
            session.flush()
            found = answers.submitted(session, caller, row, created, devices)
            return found, [job.number for job in new]

        found, numbers = await self._jobs.write(submit)
        for number in numbers:
            self._jobs.has_submitted(number)
        return found

    async def find(self, caller: Caller, group_id: str) -> GroupInfo:
        """One group.

        Raises:
            NotFound: there is no such group, or its jobs are private to another user.
        """
        return await self._jobs.read(caller, answers.group, caller, group_id, self.devices)

    async def cancel(self, caller: Caller, group_id: str) -> GroupInfo:
        """End all jobs of a group. The operation is idempotent.

        Raises:
            NotFound: as `find`.
            Forbidden: the caller is neither its user nor an administrator.
        """

        def cancel(session: Session) -> list[int]:
            return database.cancel(session, database.find_own(session, caller, group_id))

        for number in await self._jobs.write(cancel):
            self._jobs.has_cancelled(number)
        return await self.find(caller, group_id)

    async def results(
        self, caller: Caller, group_id: str, form: str
    ) -> AsyncGenerator[bytes, None]:
        """The results of a group in the format `form`, in parts.

        Raises:
            NotFound: as `find`.
            Busy: the user has too many exports and comparisons under way.
        """
        devices = self.devices

        def begin(session: Session) -> Iterator[Step]:
            return answers.begin(session, caller, group_id, form, devices)

        async for piece in self._jobs.rendered(caller, begin):
            yield piece

    def _repeated(
        self, session: Session, caller: Caller, request: GroupRequest, key: str | None
    ) -> SubmittedGroup | None:
        row = database.find_repeated(session, caller, request, key)
        return None if row is None else answers.submitted(session, caller, row, False, self.devices)
