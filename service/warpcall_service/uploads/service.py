"""What the routes call: every operation on implementations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, TooLarge
from warpcall.implementations import (
    Environment,
    Implementation,
    ImplementationDetails,
    ImplementationList,
    ModuleError,
    UploadedImplementation,
)
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.messages import frame
from warpcall_service.runs.operator_modules import OperatorModules
from warpcall_service.runs.sandbox import Sandbox, memory_bytes, search_path
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads
from warpcall_service.uploads import database, views
from warpcall_service.uploads.checks import UploadChecks
from warpcall_service.uploads.database import Filter, NewVersion, Quota
from warpcall_service.uploads.models import UploadRequest

THREADS = 2


class ImplementationService:
    """Operations on uploaded implementations; lists them with the shipped ones."""

    def __init__(
        self,
        settings: Settings,
        engine: LocalEngine,
        store: Store,
        modules: OperatorModules,
        sandbox: Sandbox,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._modules = modules
        self._sandbox = sandbox
        self._threads = StoreThreads(store, THREADS)
        self._checks = UploadChecks(settings)
        self._quota = Quota(settings.user_max_uploads, int(settings.user_max_uploaded_bytes))

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def add(self, caller: Caller, request: UploadRequest) -> UploadedImplementation:
        """Check a source and store it. The same source again is found, and not checked again.

        Raises:
            InvalidInput: there is no such op, the source cannot be used, or the name is in use.
            TooLarge: the source, or all sources of the user together, are too large.
            Forbidden: this server takes no uploads, or the user is disabled.
            Busy: too many checks wait.
            Unavailable: the database cannot be used, no process can be started, or the sandbox
                is still being checked.
        """
        self._sandbox.require()
        op = self._op(request.op)
        new = self._new_version(request)

        def known(session: Session) -> bool:
            if database.find_stored(session, caller, new) is not None:
                return True
            database.check_room(session, caller, new, self._quota)
            return False

        doc: str | None = None
        if not await self._threads.read(known):
            doc = await self._checks.check(caller.name, op, new)

        def store(session: Session) -> UploadedImplementation:
            row, created = database.store(session, caller, new, doc, self._quota)
            return views.uploaded(row, created)

        return await self._threads.write(store)

    async def list(self, caller: Caller, wanted: Filter) -> ImplementationList:
        """A page of what the caller may read; the first one begins with what is not uploaded.

        Raises:
            Unavailable: the database cannot be read, or no lane can answer.
        """

        def read(session: Session) -> tuple[list[Implementation], str | None]:
            rows = database.listed(session, caller, wanted)
            page, more = rows[: wanted.limit], len(rows) > wanted.limit
            found = [views.implementation(row) for row in page]
            return found, database.cursor(page[-1]) if more else None

        uploaded, following = await self._threads.read(read)
        installed, modules = await self._installed(), await self._modules.current()
        others = [views.shipped(**one) for one in installed["implementations"]]
        others += [one for module in modules for one in views.provided(module)]
        if wanted.op is not None:
            others = [one for one in others if one.op in (None, wanted.op)]
        if wanted.before is not None or wanted.user is not None:
            others = []
        errors = [ModuleError(module=m.name, error=m.error) for m in modules if m.error]
        return ImplementationList(
            implementations=[*others, *uploaded], errors=errors, next=following
        )

    async def environment(self) -> Environment:
        """What uploaded source may use.

        Raises:
            Unavailable: no lane can answer.
        """
        settings = self._settings
        installed = await self._installed()
        facts = installed["environment"]
        limits = {
            "source_bytes": int(settings.upload_max_bytes),
            "check_s": settings.upload_check_s,
            "tmp_bytes": int(settings.sandbox_tmp_bytes),
            "processes": settings.sandbox_processes,
            "memory_bytes": memory_bytes(settings),
        }
        return checked(
            Environment,
            {
                **facts,
                "packages": [tuple(package) for package in facts["packages"]],
                "uploads": settings.uploads,
                "trouble": self._sandbox.trouble if settings.uploads == "sandboxed" else "",
                "limits": limits,
            },
        )

    async def find(
        self, caller: Caller, user: str, name: str, version: str | None
    ) -> ImplementationDetails:
        """A version with its source, by default the latest, and all versions of its name.

        Raises:
            NotFound: there is none, or it is private to another user.
        """

        def read(session: Session) -> ImplementationDetails:
            row = database.find(session, caller, user, name, version)
            return views.details(row, database.versions(session, caller, user, name))

        return await self._threads.read(read)

    async def delete(self, caller: Caller, user: str, name: str, version: str | None) -> None:
        """Delete a version, or all of them. Jobs that are queued already can still time them.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        await self._threads.write(
            lambda session: database.delete(session, caller, user, name, version)
        )

    def metrics(self) -> Iterable[Metric]:
        """The checks of uploads, as Prometheus metrics."""
        return self._checks.metrics()

    def _op(self, name: str) -> dict[str, Any]:
        ops = {op["name"]: op for op in self._engine.catalog}
        if name not in ops:
            raise InvalidInput(f"op must be one of {', '.join(ops)}, got {name!r:.60}", field="op")
        return ops[name]

    def _new_version(self, request: UploadRequest) -> NewVersion:
        function = request.function or request.op.replace("-", "_")
        name = request.name or function
        new = NewVersion(request.op, function, name, request.source, request.private)
        most = int(self._settings.upload_max_bytes)
        if new.nbytes > most:
            raise TooLarge(
                f"source must have at most {most} bytes of UTF-8, got {new.nbytes}", field="source"
            )
        if not re.fullmatch(database.NAME, name):
            raise InvalidInput(
                f"name must begin with a letter or digit, got {name}, the name of the function; "
                "give another one",
                field="name",
            )
        return new

    async def _installed(self) -> dict[str, Any]:
        """What a lane's worker knows: the shipped `implementations`, and the `environment`."""
        path = search_path() if self._settings.uploads == "sandboxed" else None
        return await self._engine.request_plan(
            frame({"installed": {"path": path}}), "the list of implementations"
        )
