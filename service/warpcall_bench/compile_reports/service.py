"""Makes compile reports, and keeps them for a while."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpcall.compile_reports import ARCHITECTURES, CompileReport
from warpcall.errors import InvalidInput
from warpcall_bench.compile_reports.cache import AnswerCache, InvalidText, nbytes_of, report_of
from warpcall_bench.compile_reports.models import CompileRequest
from warpcall_bench.jobs.models import is_problem, without_version
from warpcall_bench.runs.messages import NO_ANSWER, ExplainRequest, ProblemSource
from warpcall_bench.runs.operator_modules import KERNELS
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.runs.trees import SourceTree
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import job_uploads
from warpcall_bench.uploads.answers import CompileAnswer
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.files import read as read_files
from warpcall_bench.uploads.files import tree_of_version
from warpcall_bench.uploads.new_versions import check_source
from warpcall_bench.uploads.trees import checked_tree
from warpcall_service.extension import Engine
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads

THREADS = 1
CASE_BYTES = 1 << 30  # of inputs and outputs, which code of users gets in host memory


class CompileReports:
    """Makes compile reports of the library's kernels, of uploads, and of sources in requests."""

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        store: Store,
        sandbox: Sandbox,
        checks: Checks,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._threads = StoreThreads(store, THREADS)
        self._sandbox = sandbox
        self._checks = checks
        self._cache = AnswerCache[CompileAnswer](int(settings.explain_cache_bytes), nbytes_of)

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def make(self, caller: Caller, request: CompileRequest) -> CompileReport:
        """A report, from the cache if it was made before.

        Raises:
            InvalidInput: the request is wrong, or the source cannot be used; the message names the
                line.
            TooLarge: the source is too large.
            Forbidden: the caller may not send source, or this server runs no uploaded code.
            Busy: too many checks wait.
            Unavailable: the database cannot be used, or no process can be started.
        """
        wanted = await self._wanted(caller, request)
        key = _key(wanted.request)
        answer = self._cache.find(key)
        if answer is None:
            answer = await self._checks.compile(caller.name, wanted.request)
        try:  # in a thread, because texts may have 2 MiB
            report = await asyncio.to_thread(
                report_of,
                answer,
                wanted.request["op"],
                wanted.implementation,
                request.gpu,
                request.texts,
            )
        except InvalidText:
            raise InvalidInput(f"source: {NO_ANSWER}", field="source") from None
        self._cache.keep(key, answer)
        return report

    async def _wanted(self, caller: Caller, request: CompileRequest) -> _Wanted:
        name, source = request.implementation, request.source
        if source is not None:
            caller.check("upload")
            if name is not None:
                raise InvalidInput(
                    "source: implementation must not be given beside a source", field="source"
                )
            check_source(source, int(self._settings.upload_max_bytes))
        files = checked_tree(request.entry, request.files, self._settings.upload_max_files)
        if source is None and files.entry:
            raise InvalidInput("files: they belong to a source, which is absent", field="files")
        uploaded = name is not None and "/" in name
        if name is not None and not uploaded and name != KERNELS:
            raise InvalidInput(
                f"implementation: it must be {KERNELS}, or an upload such as ann/my_permute, got "
                f"{name!r:.60}",
                field="implementation",
            )
        check_architecture(request.gpu)
        op = without_version(request.op)
        if is_problem(op) and source is None and not uploaded:
            raise InvalidInput(
                f"implementation: {KERNELS} has no kernels for {op}, which is a problem",
                field="implementation",
            )
        check_op(self._engine, op)
        if source is not None or uploaded:
            self._sandbox.require()
        function = request.function or op.rpartition("/")[2].replace("-", "_")
        most_bytes = int(self._settings.upload_max_tree_bytes)

        def read(
            session: Session,
        ) -> tuple[ProblemSource | None, SourceTree | None, str, str | None]:
            found_problem: ProblemSource | None = None
            if is_problem(op):
                row = job_uploads.resolve_problem(session, caller, request.op)
                found_problem = {"name": op, "source": row.source}
            if source is not None:
                sent = read_files(session, caller.name, source, files, most_bytes)
                return found_problem, sent, function, None
            assert name is not None
            stored = job_uploads.resolve(session, caller, op, [name])[name]
            verified = job_uploads.verified_of(stored)
            if verified is not None and verified["language"] == "cuda":
                raise InvalidInput(
                    f"implementation: {name} is CUDA C++, and compile reports are of Triton "
                    "kernels",
                    field="implementation",
                )
            full = f"{stored.user_name}/{stored.name}@{stored.sha256[:12]}"
            return found_problem, tree_of_version(session, stored), stored.function, full

        problem: ProblemSource | None = None
        tree: SourceTree | None = None
        if source is not None or uploaded:
            problem, tree, function, name = await self._threads.read(read)
        else:
            name = KERNELS
        return _Wanted(
            implementation=name,
            request={
                "op": op,
                "problem": problem,
                "function": function if tree is not None else "",
                "tree": tree,
                "case": request.case.model_dump(mode="json", exclude_unset=True, exclude_none=True),
                "gpu": request.gpu,
                "limit_s": self._settings.explain_s,
                "memory_bytes": CASE_BYTES,
            },
        )


def _key(request: ExplainRequest) -> str:
    """A hash of all that a report depends on. Files are in it by their hashes."""
    tree = request["tree"]
    asked = {
        **request,
        "tree": None if tree is None else {k: v for k, v in tree.items() if k != "contents"},
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def check_architecture(gpu: str) -> None:
    """Raise InvalidInput unless kernels can be compiled for an architecture."""
    if gpu not in ARCHITECTURES:
        raise InvalidInput(
            f"gpu: it must be one of {', '.join(ARCHITECTURES)}, got {gpu!r:.60}", field="gpu"
        )


def check_op(engine: Engine, op: str) -> None:
    """Raise InvalidInput unless a name is that of an op of the library, or can be that of a problem."""
    names = [one["name"] for one in engine.catalog]
    if not is_problem(op) and op not in names:
        raise InvalidInput(
            f"op: it must be one of {', '.join(names)}, or a problem, got {op!r:.60}", field="op"
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a request asks for, with the sources that it names."""

    implementation: str | None
    request: ExplainRequest
