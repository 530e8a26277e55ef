"""Has sources of users checked in processes of their own, some at a time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import ValidationError

from warpcall.errors import InvalidInput, Unavailable
from warpcall_bench.runs.messages import (
    NO_ANSWER,
    WITHOUT_GPU,
    CheckRequest,
    ChecksRequest,
    ExplainRequest,
    ProblemRequest,
    VerifyRequest,
    plan_check_body,
)
from warpcall_bench.runs.one_shot import NotStarted, OneShotError
from warpcall_bench.runs.trees import SourceTree
from warpcall_bench.runs.waiting_checks import WaitingChecks
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.answers import (
    CasesAnswer,
    CheckAnswer,
    CompileAnswer,
    ImplementationAnswer,
    ProblemAnswer,
    SourcesAnswer,
    VerifyAnswer,
)
from warpcall_bench.uploads.new_versions import NewImplementation
from warpcall_service.admission import Admission

MAX_WAITING = 8  # checks of one user, besides the one that runs
MAX_ANSWER_BYTES = 16 << 10
MAX_DECLARATION_BYTES = 128 << 10
# 1,000 cases with 10 inputs have 0.8 MB. Parsing so many of each sign takes some 10 ms, in which the
# interpreter's lock is held, in whatever thread.
MAX_CASES_BYTES = 2 << 20
MAX_CASES_PARTS = {b"[": 20_000, b"{": 20_000, b":": 80_000, b",": 100_000}
MAX_PLANS_BYTES = 24 << 20  # launch plans of all cases of a verification
RETRY_AFTER_S = 30.0
TOO_LARGE = "the descriptions of its cases are too large together; ask for fewer cases"

log = logging.getLogger("warpcall.uploads")

A = TypeVar("A", bound=CheckAnswer)


@dataclass(frozen=True)
class Check(Generic[A]):
    """What a process checks.

    Attributes:
        module: runs in the process.
        answer: the form of its answer, which has at most `most_bytes`.
    """

    module: str
    answer: type[A]
    most_bytes: int


IMPLEMENTATION = Check(
    "warpcall_bench.programs.upload_check", ImplementationAnswer, MAX_ANSWER_BYTES
)
SOURCES = Check("warpcall_bench.programs.sources_check", SourcesAnswer, MAX_CASES_BYTES)
PROBLEM = Check("warpcall_bench.programs.problem_check", ProblemAnswer, MAX_DECLARATION_BYTES)
CASES = Check("warpcall_bench.programs.problem_check", CasesAnswer, MAX_CASES_BYTES)
COMPILE = Check("warpcall_bench.programs.explain", CompileAnswer, MAX_CASES_BYTES)
RECORD_MODULE = "warpcall_bench.programs.verify"
VERIFY = Check("warpcall_bench.programs.plan_check", VerifyAnswer, MAX_CASES_BYTES)


class Checks:
    """Checks sources: one of each user at a time, and `upload_checks` in all.

    Those of uploads count, and those of cases of jobs on a problem, of compile reports and of
    verifications, which run sources, too.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._admission = Admission(
            "checks of uploads", settings.upload_checks, MAX_WAITING, settings.call_timeout_s
        )
        self._ended = Counter[str](accepted=0, refused=0, failed=0)
        self._sandboxed = WaitingChecks(settings, trusted=False)
        self._trusted = WaitingChecks(settings, trusted=True)  # for code of the server

    async def stop(self) -> None:
        """End the processes that wait for checks."""
        await self._sandboxed.stop()
        await self._trusted.stop()

    async def implementation(
        self,
        user: str,
        op: Mapping[str, Any],
        new: NewImplementation,
        tree: SourceTree,
        gpu: str,
    ) -> str:
        """Check the source of an implementation, and return the first line of its docstring.

        Args:
            op: the op's declaration, from `Op.describe`.
            tree: its files.
            gpu: architecture of the GPU on which jobs run, such as "sm_90"; empty without one.

        Raises:
            InvalidInput: the source cannot be used; the message names the line.
            Busy: the user has too many checks that are not finished, or it waited too long.
            Unavailable: no process can be started.
        """
        request = self._request(op, new, tree, gpu)
        return (await self._accepted(user, IMPLEMENTATION, request)).doc or ""

    async def implementations(
        self, user: str, op: Mapping[str, Any], news: Sequence[NewImplementation], gpu: str
    ) -> list[ImplementationAnswer]:
        """Check several sources of one user in one process, which imports torch once for all of them.

        Args:
            news: at most MAX_SOURCES, each a single file.
            op, gpu: as for `implementation`.

        Returns:
            The answer to each in order, with `doc` or with an `error`.

        Raises:
            Busy, Unavailable: as `implementation`.
        """
        checks = [self._request(op, new, {"source": new.source}, gpu) for new in news]
        limit_s = self._settings.upload_check_s
        together: ChecksRequest = {"checks": checks, "limit_s": len(checks) * limit_s}
        body = json.dumps(together).encode()
        async with self._admission.admitted(user):
            whole = await self._ask(SOURCES, body, together["limit_s"], trusted=False)
        answers = whole.answers or []
        if len(answers) != len(checks):  # a source may have ended the process of all
            return [await self._answer(user, IMPLEMENTATION, check) for check in checks]
        found = []
        for answer in answers:
            if answer is None:
                ended = OneShotError("its process ended before it had answered")
                answer = _failed(ImplementationAnswer, ended, limit_s)
            elif not (answer.error or answer.is_complete):
                answer = ImplementationAnswer(error=NO_ANSWER)
            self._ended["accepted" if answer.error is None else "refused"] += 1
            found.append(answer)
        return found

    def _request(
        self, op: Mapping[str, Any], new: NewImplementation, tree: SourceTree, gpu: str
    ) -> CheckRequest:
        inputs = op["inputs"]
        return {
            **tree,
            "op": op["name"],
            "function": new.function,
            "inputs": [one["name"] for one in inputs if not one["optional"]],
            "optional_inputs": [one["name"] for one in inputs if one["optional"]],
            "params": [one["name"] for one in op["params"]],
            "verified": new.verified,
            # Without a GPU, jobs interpret the kernels of uploads, but compile those of verified ones.
            "gpu": gpu or (WITHOUT_GPU if new.verified else ""),
            "limit_s": self._settings.upload_check_s,
        }

    async def problem(self, user: str, name: str, source: str) -> ProblemAnswer:
        """Check the source of a problem; the answer has a `declaration`.

        Args:
            name: the problem's, for messages.

        Raises:
            InvalidInput, Busy, Unavailable: as `implementation`.
        """
        return await self._accepted(user, PROBLEM, self._problem_request(name, source, None))

    async def cases(self, user: str, name: str, source: str, job: Mapping[str, Any]) -> CasesAnswer:
        """Have a problem make the cases of a job. The answer has either `cases` or an `error`.

        Args:
            job: as in `ProblemRequest`.

        Raises:
            Busy, Unavailable: as `implementation`.
        """
        return await self._answer(user, CASES, self._problem_request(name, source, job))

    async def compile(self, user: str, request: ExplainRequest) -> CompileAnswer:
        """Have an implementation's kernels compiled. The server's own code needs no sandbox.

        Raises:
            InvalidInput: there are none; the message names the line, or what is wrong with the case.
            Busy, Unavailable: as `implementation`.
        """
        own = request["tree"] is None and request["problem"] is None
        return await self._accepted(user, COMPILE, request, trusted=own)

    async def verify(self, user: str, request: VerifyRequest) -> VerifyAnswer:
        """Have launch plans of an implementation recorded in one process, and checked in another one.

        Raises:
            InvalidInput: the request or the source is wrong; the message names the line.
            Busy, Unavailable: as `implementation`.
        """

        async def ask() -> VerifyAnswer:
            limit_s, body = request["limit_s"], json.dumps(request).encode()
            try:
                plans = await self._run(
                    RECORD_MODULE, body, limit_s, MAX_PLANS_BYTES, trusted=False
                )
            except OneShotError as error:
                return _failed(VerifyAnswer, error, limit_s)
            asked = plan_check_body(request, plans)
            return await self._ask(VERIFY, asked, limit_s, trusted=True)

        return _accepted(await self._admitted(user, ask))

    def metrics(self) -> Iterable[Metric]:
        """The checks so far, as Prometheus metrics."""
        ended = CounterMetricFamily(
            "warpcall_upload_checks",
            "Checks of sources that have ended, those of uploads and those of jobs on a problem, by "
            "outcome: accepted, refused, or failed (no process could be started)",
            labels=["outcome"],
        )
        for outcome, number in self._ended.items():
            ended.add_metric([outcome], number)
        unfinished = GaugeMetricFamily(
            "warpcall_upload_checks_unfinished", "Checks of sources that run or wait"
        )
        unfinished.add_metric([], self._admission.count)
        return ended, unfinished

    def _problem_request(
        self, name: str, source: str, job: Mapping[str, Any] | None
    ) -> ProblemRequest:
        limit_s = self._settings.upload_check_s
        return {"name": name, "source": source, "job": job, "limit_s": limit_s}

    async def _accepted(
        self, user: str, check: Check[A], request: Mapping[str, Any], *, trusted: bool = False
    ) -> A:
        """The answer to the check of an upload. Raises InvalidInput if it is a refusal."""
        return _accepted(await self._answer(user, check, request, trusted=trusted))

    async def _answer(
        self, user: str, check: Check[A], request: Mapping[str, Any], *, trusted: bool = False
    ) -> A:
        body = json.dumps(request).encode()
        return await self._admitted(
            user, lambda: self._ask(check, body, request["limit_s"], trusted=trusted)
        )

    async def _admitted(self, user: str, ask: Callable[[], Awaitable[A]]) -> A:
        """The answer of a check, once the user may have one more."""
        async with self._admission.admitted(user):
            outcome = "failed"
            try:
                answer = await ask()
                outcome = "accepted" if answer.error is None else "refused"
            finally:
                self._ended[outcome] += 1
        return answer

    async def _ask(self, check: Check[A], body: bytes, limit_s: float, *, trusted: bool) -> A:
        form = check.answer
        try:
            text = await self._run(check.module, body, limit_s, check.most_bytes, trusted=trusted)
            if len(text) > MAX_DECLARATION_BYTES and _has_many_parts(text):
                return form(error=TOO_LARGE)
            if len(text) <= MAX_ANSWER_BYTES:
                answer = form.model_validate_json(text)
            else:
                answer = await asyncio.to_thread(form.model_validate_json, text)
        except OneShotError as error:
            return _failed(form, error, limit_s)
        except ValidationError:
            return form(error=NO_ANSWER)
        return answer if answer.error or answer.is_complete else form(error=NO_ANSWER)

    async def _run(
        self, module: str, body: bytes, limit_s: float, most_bytes: int, *, trusted: bool
    ) -> bytes:
        """The answer of a process.

        Raises:
            OneShotError: it gave none.
            Unavailable: it cannot be started.
        """
        # Starting the process and importing torch takes as long as the start of a worker.
        whole_s = self._settings.start_timeout_s + limit_s
        try:
            waiting = self._trusted if trusted else self._sandboxed
            return await waiting.run(module, body, whole_s, most_bytes)
        except NotStarted as error:
            log.error("an upload cannot be checked: %s", error)
            raise Unavailable(
                "uploads cannot be checked at present", retry_after_s=RETRY_AFTER_S
            ) from None


def _accepted(answer: A) -> A:
    """An answer. Raises InvalidInput if it is a refusal."""
    if answer.error is not None:
        name = answer.field.partition(".")[0]
        raise InvalidInput(f"{name}: {answer.error}", field=answer.field)
    return answer


def _failed(form: type[A], error: OneShotError, limit_s: float) -> A:
    """The answer to a check whose process gave none."""
    return form(
        error=f"it cannot be checked: {error}. Its code must not end the process, and must take at "
        f"most {limit_s:g} s"
    )


def _has_many_parts(text: bytes) -> bool:
    return any(text.count(sign) > most for sign, most in MAX_CASES_PARTS.items())
