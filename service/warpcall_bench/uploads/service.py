"""What the routes and pages call: every operation on uploads."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound
from warpcall.implementations import (
    Environment,
    Implementation,
    ImplementationList,
    MissingFiles,
    ModuleError,
    UploadedImplementation,
)
from warpcall.problems import ProblemList, UploadedProblem
from warpcall_bench.runs.operator_modules import KERNELS, OperatorModule, OperatorModules
from warpcall_bench.runs.sandbox import Sandbox, memory_bytes, search_path
from warpcall_bench.runs.sources import SourceUnknown, module_file
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import files, implementations, problems, views
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.database import (
    IMPLEMENTATIONS,
    PROBLEMS,
    Row,
    UploadFilter,
    Versions,
    store_file,
)
from warpcall_bench.uploads.models import ProblemUpload, UploadRequest
from warpcall_bench.uploads.new_versions import NewImplementation, Quota, check_source
from warpcall_bench.uploads.tables import UploadedVersion
from warpcall_bench.uploads.trees import SUFFIXES
from warpcall_service.extension import Engine
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.lanes.messages import frame
from warpcall_service.quotas import Quotas
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads
from warpcall_service.text import brief

THREADS = 4
MOST_MODULE_BYTES = 1 << 20  # of the file of an operator's module that is shown

Details = TypeVar("Details")


@dataclass(frozen=True)
class Kind(Generic[Row, Details]):
    """A kind of uploads: implementations or problems.

    Attributes:
        versions: the stored uploads of this kind.
        details: makes an answer from a version and all versions of its name.
    """

    versions: Versions[Row]
    details: Callable[[Session, Row, Sequence[Row]], Details]


IMPLEMENTATION = Kind(IMPLEMENTATIONS, views.details)
PROBLEM = Kind(PROBLEMS, views.problem_details)


@dataclass(frozen=True)
class CheckedImplementation:
    """An implementation whose source was checked, and that can be stored.

    Attributes:
        columns: from the check of the source; None if it was stored before.
        private: whether its op is a private problem.
    """

    caller: Caller
    new: NewImplementation
    columns: Mapping[str, str] | None
    quota: Quota
    private: bool

    def store(self, session: Session) -> tuple[UploadedVersion, bool]:
        """Store it as the latest version of its name; it returns and raises as `Versions.store`."""
        return IMPLEMENTATIONS.store(
            session, self.caller, self.new, self.columns, self.quota, private=self.private
        )


class UploadService:
    """Operations on implementations and problems that users upload. It lists the implementations
    with those of the library and of the operator.
    """

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        store: Store,
        modules: OperatorModules,
        sandbox: Sandbox,
        checks: Checks,
        quotas: Quotas,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._modules = modules
        self._sandbox = sandbox
        self._threads = StoreThreads(store, THREADS)
        self._checks = checks
        self._quotas = quotas

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def add_implementation(
        self, caller: Caller, request: UploadRequest
    ) -> UploadedImplementation:
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
        checked = await self.check_implementation(caller, self.named(request))

        def store(session: Session) -> UploadedImplementation:
            return views.uploaded(*checked.store(session))

        return await self._threads.write(store)

    def named(self, request: UploadRequest) -> NewImplementation:
        """The implementation that a request describes, before its source is checked.

        Raises:
            InvalidInput: there is no such op, and it cannot be a problem, or it has no function or no
                name.
            TooLarge: the source is too large.
        """
        new = implementations.named(request, self._engine.catalog, self._settings.upload_max_files)
        check_source(new.source, int(self._settings.upload_max_bytes))
        return new

    async def check_implementation(
        self, caller: Caller, new: NewImplementation
    ) -> CheckedImplementation:
        """Check a source. One that is stored already is not checked again.

        It raises as `add_implementation`.
        """
        self._sandbox.require()
        quota = Quota.of(self._quotas, caller.name)
        catalog, most_bytes = self._engine.catalog, int(self._settings.upload_max_tree_bytes)
        known = await self._threads.read(
            lambda session: implementations.known(session, caller, new, catalog, quota, most_bytes)
        )
        columns: dict[str, str] | None = None
        if known.tree is not None:
            gpu = await self._gpu()
            doc = await self._checks.implementation(caller.name, known.op, new, known.tree, gpu)
            columns = {"doc": doc}
        return CheckedImplementation(caller, new, columns, quota, known.private)

    async def check_implementations(
        self, caller: Caller, news: Sequence[NewImplementation]
    ) -> list[CheckedImplementation | InvalidInput]:
        """Check several sources for one op together. Those that are stored are not checked again.
        Uploads of several files are checked one by one, because each may be large.

        Returns:
            Each in order, or why it is refused. It raises as `check_implementation` otherwise.
        """
        if any(new.tree.entry for new in news):
            return [await self._checked_or_refused(caller, new) for new in news]
        self._sandbox.require()
        quota = Quota.of(self._quotas, caller.name)
        catalog, most_bytes = self._engine.catalog, int(self._settings.upload_max_tree_bytes)
        known = await self._threads.read(
            lambda session: [
                implementations.known(session, caller, new, catalog, quota, most_bytes)
                for new in news
            ]
        )
        unknown = [new for new, one in zip(news, known, strict=True) if not one.stored]
        gpu = await self._gpu()
        answers = iter(
            await self._checks.implementations(caller.name, known[0].op, unknown, gpu)
            if unknown
            else ()
        )
        found: list[CheckedImplementation | InvalidInput] = []
        for new, one in zip(news, known, strict=True):
            columns: dict[str, str] | None = None
            if not one.stored:
                answer = next(answers)
                if answer.error is not None:
                    detail = f"{answer.field}: {answer.error}"
                    found.append(InvalidInput(detail, field=answer.field))
                    continue
                columns = {"doc": answer.doc or ""}
            found.append(CheckedImplementation(caller, new, columns, quota, one.private))
        return found

    async def _checked_or_refused(
        self, caller: Caller, new: NewImplementation
    ) -> CheckedImplementation | InvalidInput:
        try:
            return await self.check_implementation(caller, new)
        except InvalidInput as error:
            return error

    async def missing_files(self, caller: Caller, hashes: Sequence[str]) -> MissingFiles:
        """Which files the caller has not sent yet. What others have sent makes no difference.

        Raises:
            Forbidden: this server takes no uploads.
        """
        self._sandbox.require()
        found = await self._threads.write(
            lambda session: files.missing(session, caller.name, hashes)
        )
        return MissingFiles(missing=found)

    async def add_file(self, caller: Caller, sha256: str, content: bytes) -> bool:
        """Store a file for uploads of several files; returns whether it is new.

        Raises:
            InvalidInput: it is another file than the hash says.
            Forbidden: this server takes no uploads, or the user is disabled.
            TooLarge: the user would have too many bytes.
        """
        self._sandbox.require()
        found = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
        if found != sha256:
            raise InvalidInput(
                f"body must have the SHA-256 {sha256}, which is in the path, got {len(content)} bytes "
                f"with {found}",
                field="body",
            )
        quota = Quota.of(self._quotas, caller.name)
        return await self._threads.write(
            lambda session: store_file(session, caller, sha256, content, quota)
        )

    async def read_files(
        self, caller: Caller, user: str, name: str, version: str | None, path: str | None = None
    ) -> dict[str, bytes]:
        """The content of each file of a version, or of one file, by its path.

        Raises:
            NotFound: there is no such version, or it is private to another user; or it has no such file.
        """

        def read(session: Session) -> dict[str, bytes]:
            row = IMPLEMENTATIONS.find(session, caller, user, name, version)
            source = row.entry or f"{row.name}{SUFFIXES[views.language_of(row)]}"
            if path is None or path != source:
                found = files.contents(session, row.number, None if path is None else [path])
            else:
                found = {}
            if path is None or path == source:
                found[source] = row.source.encode()
            if path is not None and not found:
                raise NotFound(
                    f"{row.user_name}/{row.name} has no file {brief(path)}", field="path"
                )
            return found

        return await self._threads.read(read)

    async def add_problem(self, caller: Caller, request: ProblemUpload) -> UploadedProblem:
        """Check a source and store it. The same source again is found, and not checked again.

        Raises:
            InvalidInput: the source cannot be used, or has no name that a problem can have.
            TooLarge, Forbidden, Busy, Unavailable: as `add_implementation`.
        """
        self._sandbox.require()
        check_source(request.source, int(self._settings.upload_max_bytes))
        quota = Quota.of(self._quotas, caller.name)
        new = await self._threads.read(
            lambda session: problems.known(session, caller, request, quota)
        )
        columns: dict[str, str] | None = None
        if new is None:
            new, columns = await problems.check(self._checks, caller, request)

        def store(session: Session) -> UploadedProblem:
            row, created = PROBLEMS.store(session, caller, new, columns, quota)
            return views.uploaded_problem(row, created)

        return await self._threads.write(store)

    async def find(
        self, kind: Kind[Row, Details], caller: Caller, user: str, name: str, version: str | None
    ) -> Details:
        """A version with its source, by default the latest, and all versions of its name.

        Raises:
            NotFound: there is none, or it is private to another user.
        """

        def read(session: Session) -> Details:
            row = kind.versions.find(session, caller, user, name, version)
            return kind.details(session, row, kind.versions.all(session, caller, user, name))

        return await self._threads.read(read)

    async def delete(
        self, kind: Kind[Row, Details], caller: Caller, user: str, name: str, version: str | None
    ) -> None:
        """Delete a version, or all of them. Jobs that are queued already can still use them, and
        implementations of a deleted problem stay.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        await self._threads.write(
            lambda session: kind.versions.delete(session, caller, user, name, version)
        )

    async def list_problems(self, caller: Caller, wanted: UploadFilter) -> ProblemList:
        """A page of the problems that the caller may read, the latest version of each."""

        def read(session: Session) -> ProblemList:
            rows, following = PROBLEMS.page(session, caller, wanted)
            return ProblemList(problems=[views.problem(row) for row in rows], next=following)

        return await self._threads.read(read)

    async def list_implementations(
        self, caller: Caller, wanted: UploadFilter
    ) -> ImplementationList:
        """A page of what the caller may read; the first one begins with what is not uploaded.

        Raises:
            Unavailable: the database cannot be read, or no lane can answer.
        """

        def read(session: Session) -> tuple[list[Implementation], str | None]:
            rows, following = IMPLEMENTATIONS.page(session, caller, wanted)
            return [views.implementation(row) for row in rows], following

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
            "files": settings.upload_max_files,
            "tree_bytes": int(settings.upload_max_tree_bytes),
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

    async def _gpu(self) -> str:
        """The architecture of the GPU on which jobs run, such as "sm_90"; empty without one."""
        return (await self._installed())["environment"]["gpu"] or ""

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
