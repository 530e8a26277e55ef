"""What the routes call: every operation on problems."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.problems import ProblemDetails, ProblemInfo, ProblemList, UploadedProblem
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import database, views
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.database import PROBLEMS, Filter, check_room
from warpcall_bench.uploads.models import ProblemUpload
from warpcall_bench.uploads.new_versions import NewProblem, Quota, check_name, check_source
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads

THREADS = 2
UNNAMED = "problem"  # its name in the check, as long as nobody knows that of its reference


class ProblemService:
    """Operations on problems: ops that users declare, for jobs to measure."""

    def __init__(
        self, settings: BenchSettings, store: Store, checks: Checks, sandbox: Sandbox
    ) -> None:
        self._sandbox = sandbox
        self._threads = StoreThreads(store, THREADS)
        self._checks = checks
        self._most_bytes = int(settings.upload_max_bytes)
        self._quota = Quota.of(settings)

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def add(self, caller: Caller, request: ProblemUpload) -> UploadedProblem:
        """Check a source and store it. The same source again is found, and not checked again.

        Raises:
            InvalidInput: the source cannot be used, or has no name that a problem can have.
            TooLarge: the source, or all sources of the user together, are too large.
            Forbidden: this server takes no uploads, or the user is disabled.
            Busy: too many checks wait.
            Unavailable: the database cannot be used, no process can be started, or the sandbox
                is still being checked.
        """
        self._sandbox.require()
        check_source(request.source, self._most_bytes)
        new = await self._threads.read(lambda session: self._known(session, caller, request))
        columns: dict[str, str] | None = None
        if new is None:
            new, columns = await self._checked(caller, request)

        def store(session: Session) -> UploadedProblem:
            row, created = PROBLEMS.store(session, caller, new, columns, self._quota)
            return views.uploaded_problem(row, created)

        return await self._threads.write(store)

    async def list(self, caller: Caller, wanted: Filter) -> ProblemList:
        """A page of the problems that the caller may read, the latest version of each."""

        def read(session: Session) -> ProblemList:
            rows = PROBLEMS.listed(session, caller, wanted)
            page, more = rows[: wanted.limit], len(rows) > wanted.limit
            found: list[ProblemInfo] = [views.problem(row) for row in page]
            return ProblemList(problems=found, next=database.cursor(page[-1]) if more else None)

        return await self._threads.read(read)

    async def find(
        self, caller: Caller, user: str, name: str, version: str | None
    ) -> ProblemDetails:
        """A version with its source, by default the latest, and all versions of its name.

        Raises:
            NotFound: there is none, or it is private to another user.
        """

        def read(session: Session) -> ProblemDetails:
            row = PROBLEMS.find(session, caller, user, name, version)
            return views.problem_details(row, PROBLEMS.all(session, caller, user, name))

        return await self._threads.read(read)

    async def delete(self, caller: Caller, user: str, name: str, version: str | None) -> None:
        """Delete a version, or all of them. Jobs that are queued already still measure them, and
        implementations of the problem stay.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        await self._threads.write(
            lambda session: PROBLEMS.delete(session, caller, user, name, version)
        )

    def _known(self, session: Session, caller: Caller, request: ProblemUpload) -> NewProblem | None:
        """The upload, if it need not be checked because it is stored.

        Raises:
            TooLarge: it is not, and there is no room for it.
        """
        new = NewProblem(
            name=request.name or UNNAMED, source=request.source, private=request.private
        )
        if request.name is not None:
            if PROBLEMS.find_stored(session, caller, new) is not None:
                return new
        else:
            for row in PROBLEMS.of_source(session, caller, new.sha256):
                if row.name == _default_name(row.function):
                    return replace(new, name=row.name)
        check_room(session, caller, new, self._quota)
        return None

    async def _checked(
        self, caller: Caller, request: ProblemUpload
    ) -> tuple[NewProblem, dict[str, str]]:
        """The upload, and the columns that follow from the check of its source."""
        given = f"{caller.name}/{request.name or UNNAMED}"
        answer = await self._checks.problem(caller.name, given, request.source)
        declared = answer.declaration
        assert declared is not None
        if request.name is None and not answer.function:
            raise InvalidInput(
                "name must be given, because the reference has no name that it could have by "
                "default",
                field="name",
            )
        name = request.name or _default_name(answer.function)
        check_name(name, "the reference")
        new = NewProblem(name=name, source=request.source, private=request.private)
        declaration = {
            **declared.to_json(),
            "name": f"{caller.name}/{name}",
            "source_sha256": new.sha256,
        }
        names = {
            "inputs": [one.name for one in declared.inputs],
            "params": [one.name for one in declared.params],
            "sizes": [one.name for one in declared.sizes],
        }
        return new, {
            "doc": answer.doc or "",
            "function": answer.function,
            "outline": json.dumps(names),
            "declaration": json.dumps(declaration),
        }


def _default_name(function: str) -> str:
    return function.replace("_", "-")
