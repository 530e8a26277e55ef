"""Verifies kernels of users, and keeps what was found for a while."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.verifications import Verification
from warpcall_bench.compile_reports.cache import AnswerCache
from warpcall_bench.compile_reports.service import check_architecture, check_op
from warpcall_bench.jobs.models import is_problem, without_version
from warpcall_bench.runs.messages import ProblemSource, VerifyRequest
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.runs.trees import SourceTree
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import job_uploads
from warpcall_bench.uploads.answers import VerifyAnswer
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.files import read as read_files
from warpcall_bench.uploads.new_versions import check_source
from warpcall_bench.uploads.trees import checked_tree
from warpcall_bench.verifications.models import VerificationRequest
from warpcall_service.extension import Engine
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store
from warpcall_service.store.threads import StoreThreads

THREADS = 1
MOST_KEPT_BYTES = 4 << 20  # of answers, which have some KiB each
MOST_LAUNCHES_BYTES = 16 << 10  # of a declaration as JSON
NO_GPU = "timing needs a GPU, and this server has none"


class Verifications:
    """Says whether sources can be timed as verified kernels.

    Args:
        has_gpu: whether a job can run on a GPU.
    """

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        store: Store,
        sandbox: Sandbox,
        checks: Checks,
        has_gpu: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._threads = StoreThreads(store, THREADS)
        self._sandbox = sandbox
        self._checks = checks
        self._has_gpu = has_gpu
        self._cache = AnswerCache[VerifyAnswer](
            min(MOST_KEPT_BYTES, int(settings.explain_cache_bytes)),
            lambda answer: len(answer.model_dump_json()),
        )

    def close(self) -> None:
        """End the threads that use the database."""
        self._threads.close()

    async def make(self, caller: Caller, request: VerificationRequest) -> Verification:
        """What is found, from the cache if it was found before.

        Raises:
            InvalidInput: the request is wrong, or the source cannot be used; the message names the
                line.
            TooLarge: the source is too large.
            Forbidden: this server runs no uploaded code.
            Busy: too many checks wait.
            Unavailable: the database cannot be used, or no process can be started.
        """
        wanted = await self._wanted(caller, request)
        asked = {name: value for name, value in wanted.items() if name != "contents"}
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        answer = self._cache.find(key)
        if answer is None:
            answer = await self._checks.verify(caller.name, wanted)
            self._cache.keep(key, answer)
        fields = answer.model_dump(exclude={"error", "field"})
        about = {"op": wanted["op"], "language": wanted["language"], "gpu": wanted["gpu"]}
        return checked(
            Verification, {**fields, **about, "timing": "" if self._has_gpu() else NO_GPU}
        )

    async def _wanted(self, caller: Caller, request: VerificationRequest) -> VerifyRequest:
        check_source(request.source, int(self._settings.upload_max_bytes))
        check_architecture(request.gpu)
        _check_launches(request)
        op = without_version(request.op)
        check_op(self._engine, op)
        self._sandbox.require()
        files = checked_tree(
            *(request.entry, request.files, self._settings.upload_max_files), request.language
        )
        most_bytes = int(self._settings.upload_max_tree_bytes)

        def read(session: Session) -> tuple[ProblemSource | None, SourceTree]:
            tree = read_files(session, caller.name, request.source, files, most_bytes)
            if not is_problem(op):
                return None, tree
            source = job_uploads.resolve_problem(session, caller, request.op).source
            return {"name": op, "source": source}, tree

        tree: SourceTree = {"source": request.source}
        problem: ProblemSource | None = None
        if is_problem(op) or files.entry:
            problem, tree = await self._threads.read(read)
        return {
            **tree,
            "op": op,
            "problem": problem,
            "function": request.function or op.rpartition("/")[2].replace("-", "_"),
            "language": request.language,
            "launches": request.launches,
            "cases": [
                one.model_dump(mode="json", exclude_unset=True, exclude_none=True)
                for one in request.cases
            ],
            "gpu": request.gpu,
            "limit_s": self._settings.explain_s,
        }


def _check_launches(request: VerificationRequest) -> None:
    if request.launches is None:
        if request.language == "cuda":
            raise InvalidInput(
                "launches: a source in CUDA C++ needs a declaration of its launches",
                field="launches",
            )
        return
    nbytes = len(json.dumps(request.launches).encode())
    if nbytes > MOST_LAUNCHES_BYTES:
        raise InvalidInput(
            f"launches must have at most {MOST_LAUNCHES_BYTES} bytes as JSON, got {nbytes}",
            field="launches",
        )
