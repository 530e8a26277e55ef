"""What the routes call: every operation on implementations."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound
from warpcall.implementations import (
    Environment,
    Implementation,
    ImplementationDetails,
    ImplementationList,
    ModuleError,
    UploadedImplementation,
)
from warpcall_bench.runs.operator_modules import KERNELS, OperatorModule, OperatorModules
from warpcall_bench.runs.sandbox import Sandbox, memory_bytes, search_path
from warpcall_bench.runs.sources import SourceUnknown, module_file
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import database, job_uploads, views
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.database import IMPLEMENTATIONS, REFERENCE, Filter, check_room
from warpcall_bench.uploads.models import UploadRequest
from warpcall_bench.uploads.new_versions import (
    FUNCTION,
    NewImplementation,
    Quota,
    check_name,
    check_source,
)
from warpcall_service.extension import Engine
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.lanes.messages import frame
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads
from warpcall_service.text import brief

THREADS = 2
MOST_MODULE_BYTES = 1 << 20  # of the file of an operator's module that is shown


class ImplementationService:
    """Operations on uploaded implementations; lists them with the shipped ones."""

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        store: Store,
        modules: OperatorModules,
        sandbox: Sandbox,
        checks: Checks,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._modules = modules
        self._sandbox = sandbox
        self._threads = StoreThreads(store, THREADS)
        self._checks = checks
        self._quota = Quota.of(settings)

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def add(self, caller: Caller, request: UploadRequest) -> UploadedImplementation:
        """Check a source and store it. The same source again is found, and not checked again.

        Raises:
            InvalidInput: there is no such op or problem, the source cannot be used, or the name is
                in use.
            TooLarge: the source, or all sources of the user together, are too large.
            Forbidden: this server takes no uploads, or the user is disabled.
            Busy: too many checks wait.
            Unavailable: the database cannot be used, no process can be started, or the sandbox
                is still being checked.
        """
        self._sandbox.require()
        self._check_op(request.op)
        new = _new_version(request)
        check_source(new.source, int(self._settings.upload_max_bytes))

        def read(session: Session) -> _Known:
            op, private = self._declared(session, caller, new.op)
            stored = IMPLEMENTATIONS.find_stored(session, caller, new) is not None
            if not stored:
                check_room(session, caller, new, self._quota)
            return _Known(op, private, stored)

        known = await self._threads.read(read)
        columns: dict[str, str] | None = None
        if not known.stored:
            doc = await self._checks.implementation(caller.name, known.op, new.function, new.source)
            columns = {"doc": doc}

        def store(session: Session) -> UploadedImplementation:
            row, created = IMPLEMENTATIONS.store(
                session, caller, new, columns, self._quota, private=known.private
            )
            return views.uploaded(row, created)

        return await self._threads.write(store)

    async def list(self, caller: Caller, wanted: Filter) -> ImplementationList:
        """A page of what the caller may read; the first one begins with what is not uploaded.

        Raises:
            Unavailable: the database cannot be read, or no lane can answer.
        """

        def read(session: Session) -> tuple[list[Implementation], str | None]:
            rows = IMPLEMENTATIONS.listed(session, caller, wanted)
            page, more = rows[: wanted.limit], len(rows) > wanted.limit
            found = [views.implementation(row) for row in page]
            return found, database.cursor(page[-1]) if more else None

        uploaded, following = await self._threads.read(read)
        installed, modules = await self._installed(), await self._modules.current()
        others = [views.shipped(**one) for one in installed["implementations"]]
        others += [one for module in modules for one in views.provided(module)]
        if wanted.op is not None:
            others = [one for one in others if one.op in (None, wanted.op)]
            if "/" in wanted.op:  # the library has no kernels for problems
                others = [one for one in others if one.name != KERNELS]
        if wanted.before is not None or wanted.user is not None:
            others = []
        errors = [ModuleError(module=m.name, error=m.error) for m in modules if m.error]
        return ImplementationList(
            implementations=[*others, *uploaded], errors=errors, next=following
        )

    async def providers(self, caller: Caller) -> dict[str, OperatorModule]:
        """The operator's modules whose source the caller may read, by implementation."""
        if not self._may_read_modules(caller):
            return {}
        return {
            one.name: module
            for module in await self._modules.current()
            for one in module.implementations
        }

    async def module_source(self, caller: Caller, name: str) -> tuple[OperatorModule, str]:
        """A module of the operator, and the source of its file.

        Raises:
            NotFound: there is none, or the caller may not read it.
        """
        modules = await self._modules.current() if self._may_read_modules(caller) else ()
        for module in modules:
            if module.name == name:
                return module, await asyncio.to_thread(_source_of, name)
        raise NotFound(
            f"there is no module {brief(name)}, or its source may not be read", field="module"
        )

    def _may_read_modules(self, caller: Caller) -> bool:
        return self._settings.job_modules_readable or caller.may("admin")

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
            row = IMPLEMENTATIONS.find(session, caller, user, name, version)
            return views.details(row, IMPLEMENTATIONS.all(session, caller, user, name))

        return await self._threads.read(read)

    async def delete(self, caller: Caller, user: str, name: str, version: str | None) -> None:
        """Delete a version, or all of them. Jobs that are queued already can still time them.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        await self._threads.write(
            lambda session: IMPLEMENTATIONS.delete(session, caller, user, name, version)
        )

    def _check_op(self, name: str) -> None:
        """Raise InvalidInput unless a name is of an op, or could be of a problem."""
        names = [op["name"] for op in self._engine.catalog]
        parts = REFERENCE.fullmatch(name)
        if name not in names and (parts is None or parts["version"] is not None):
            raise InvalidInput(
                f"op must be one of {', '.join(names)}, or a problem without its version, such as "
                f"ann/row-norm, got {name!r:.60}",
                field="op",
            )

    def _declared(
        self, session: Session, caller: Caller, name: str
    ) -> tuple[Mapping[str, Any], bool]:
        """The declaration of an op, and whether it is a problem that is private."""
        if "/" not in name:
            return next(op for op in self._engine.catalog if op["name"] == name), False
        problem = job_uploads.resolve_problem(session, caller, name)
        return json.loads(problem.declaration), problem.private

    async def _installed(self) -> dict[str, Any]:
        """What a lane's worker knows: the shipped `implementations`, and the `environment`."""
        path = search_path() if self._settings.uploads == "sandboxed" else None
        return await self._engine.request_plan(
            frame({"installed": {"path": path}}), "the list of implementations"
        )


def _source_of(module: str) -> str:
    """The text of a module's file; empty if there is none that is short enough."""
    try:
        file = module_file(module)
        with file.open("rb") as opened:
            content = opened.read(MOST_MODULE_BYTES + 1)
    except (SourceUnknown, ImportError, OSError):
        return ""
    return "" if len(content) > MOST_MODULE_BYTES else content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of an upload before its source is checked.

    Attributes:
        op: the declaration of its op.
        private: whether its op is a private problem.
        stored: whether the same source is stored under the same name.
    """

    op: Mapping[str, Any]
    private: bool
    stored: bool


def _new_version(request: UploadRequest) -> NewImplementation:
    function = request.function or request.op.rpartition("/")[2].replace("-", "_")
    if not re.fullmatch(FUNCTION, function):
        raise InvalidInput(
            f"function must be given, because {function!r:.60} cannot be the name of a function",
            field="function",
        )
    name = request.name or function
    check_name(name, "the function")
    return NewImplementation(
        op=request.op, function=function, name=name, source=request.source, private=request.private
    )
