"""Benchmark jobs in the SDK: submit, list, watch, cancel, read and compare them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import urlencode

from warpcall._blocking import each_now, run_now
from warpcall._jobs.events import events
from warpcall._jobs.job import PATH, AsyncJob, Job, JobHandle, checked, path_of, results_of
from warpcall._tensors import new_id
from warpcall.errors import InvalidInput, TransportError

if TYPE_CHECKING:
    from warpcall._core import Core

CREATED = (200, 201)


class JobRequest(TypedDict, total=False):
    """What a job is asked for; docs/http-api.md says what each means, and what it is if left out."""

    implementations: Sequence[str] | None
    cases: Sequence[Mapping[str, object]] | None
    sweep: Mapping[str, object] | None
    precision: str | None
    priority: str | None
    tags: Sequence[str] | None
    note: str | None
    fresh: bool


JobT = TypeVar("JobT", bound=JobHandle)


class _Desk(Generic[JobT]):
    """What both flavours ask of the server."""

    def __init__(self, core: Core, kind: type[JobT]) -> None:
        self._core = core
        self._kind = kind

    async def _submit(self, op: str, request: JobRequest, key: str | None) -> JobT:
        headers = {"Idempotency-Key": new_id() if key is None else key}
        told = await self._core.ask("POST", PATH, {"op": op, **given(request)}, headers, CREATED)
        return self._kind(self._core, told)

    async def _preview(self, op: str, request: JobRequest) -> dict[str, Any]:
        told = await self._core.ask("POST", f"{PATH}/preview", {"op": op, **given(request)})
        if not isinstance(told, dict) or "cases" not in told:
            raise TransportError(f"the server must tell of a job to be, got {told!r:.60}")
        return told

    async def _get(self, id_: str) -> JobT:
        return self._kind(self._core, await self._core.get_json(path_of(id_)))

    async def _list(self, wanted: Mapping[str, object]) -> list[JobT]:
        found = await self._object(f"{PATH}?{urlencode(given(wanted))}", "jobs")
        return [self._kind(self._core, told) for told in found["jobs"]]

    async def _queue(self) -> dict[str, Any]:
        return await self._object(f"{PATH}/queue", "entries")

    async def _cancel(self, id_: str) -> JobT:
        return self._kind(self._core, await self._core.ask("POST", path_of(id_, "/cancel")))

    def _events(self, id_: str, after: int) -> AsyncGenerator[dict[str, Any], None]:
        return events(self._core, path_of(id_, "/events"), after, None, f"the job {id_}")

    async def _compare(self, a: str, b: str) -> dict[str, Any]:
        return await self._object(path_of(a, f"/compare/{checked(b)}"), "rows")

    async def _history(self, case: str, implementation: str, limit: int | None) -> dict[str, Any]:
        op = case.partition(" ")[0]
        if not op:
            raise InvalidInput(
                f"case must begin with its op, as results have it, got {case!r}", field="case"
            )
        wanted = {"op": op, "implementation": implementation, "case": case, "limit": limit}
        return await self._object(f"{PATH}/history?{urlencode(given(wanted))}", "points")

    async def _object(self, path: str, member: str) -> dict[str, Any]:
        found = await self._core.get_json(path)
        if not isinstance(found, dict) or not isinstance(found.get(member), list):
            raise TransportError(f"{path} must list {member}, got {found!r:.60}")
        return found


class Jobs(_Desk[Job]):
    """Benchmarks on the server's devices, each in its turn.

    job = gpu.jobs.submit(
        "permute", sweep={"shapes": [[64, 64]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
    )
    for row in job.wait()["measurements"]:
        print(row["case"], row["implementation"], row["median_us"], row["verdict"])
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core, Job)

    def submit(
        self,
        op: str,
        *,
        idempotency_key: str | None = None,
        **request: Unpack[JobRequest],
    ) -> Job:
        """Queue a benchmark.

        Args:
            request: either `cases` or a `sweep`, and more; see JobRequest.
            idempotency_key: a submission that is sent again with it finds the first one's job; by
                default a new one, so that a retry after a lost answer makes no second job.

        Raises:
            InvalidInput: what cannot be measured; `field` names it.
            Busy: you have too many jobs that are not finished.
        """
        return run_now(self._submit(op, request, idempotency_key))

    def preview(self, op: str, **request: Unpack[JobRequest]) -> dict[str, Any]:
        """What submitting this would come to, such as `cases` and `estimated_s`; nothing is queued."""
        return run_now(self._preview(op, request))

    def get(self, id: str) -> Job:
        """One job, or NotFound."""
        return run_now(self._get(id))

    def list(
        self,
        *,
        state: str | None = None,
        op: str | None = None,
        tag: str | None = None,
        user: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Your jobs (an administrator's everyone's), the latest first, at most `limit` (50).

        Args:
            before: the id of the last job of the page before.
        """
        wanted = {"state": state, "op": op, "tag": tag, "user": user}
        return run_now(self._list({**wanted, "before": before, "limit": limit}))

    def queue(self) -> dict[str, Any]:
        """Everyone's jobs that run or wait, in order, in `entries`."""
        return run_now(self._queue())

    def cancel(self, id: str) -> Job:
        """End a job, whether it waits or runs."""
        return run_now(self._cancel(id))

    def events(self, id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Job.events of one."""
        return each_now(self._events(id, after))

    def results(self, id: str, *, samples: bool = False) -> dict[str, Any]:
        """Job.results of one."""
        return run_now(results_of(self._core, id, samples=samples))

    def compare(self, a: str, b: str) -> dict[str, Any]:
        """What both measured, in `rows`: `ratio` is b over a, above 1 means that b is slower."""
        return run_now(self._compare(a, b))

    def history(
        self, case: str, *, implementation: str = "warpcall", limit: int | None = None
    ) -> dict[str, Any]:
        """What a case took in one job after the other, in `points`, the latest first.

        Args:
            case: as the results of a job have it under `case`; it begins with the op.
            limit: of points, 100 by default.
        """
        return run_now(self._history(case, implementation, limit))


class AsyncJobs(_Desk[AsyncJob]):
    """Jobs for AsyncClient; its methods are awaited."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, AsyncJob)

    async def submit(
        self,
        op: str,
        *,
        idempotency_key: str | None = None,
        **request: Unpack[JobRequest],
    ) -> AsyncJob:
        """Jobs.submit, awaited."""
        return await self._submit(op, request, idempotency_key)

    async def preview(self, op: str, **request: Unpack[JobRequest]) -> dict[str, Any]:
        """Jobs.preview, awaited."""
        return await self._preview(op, request)

    async def get(self, id: str) -> AsyncJob:
        """Jobs.get, awaited."""
        return await self._get(id)

    async def list(
        self,
        *,
        state: str | None = None,
        op: str | None = None,
        tag: str | None = None,
        user: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[AsyncJob]:
        """Jobs.list, awaited."""
        wanted = {"state": state, "op": op, "tag": tag, "user": user}
        return await self._list({**wanted, "before": before, "limit": limit})

    async def queue(self) -> dict[str, Any]:
        """Jobs.queue, awaited."""
        return await self._queue()

    async def cancel(self, id: str) -> AsyncJob:
        """Jobs.cancel, awaited."""
        return await self._cancel(id)

    def events(self, id: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Jobs.events, for `async for`."""
        return self._events(id, after)

    async def results(self, id: str, *, samples: bool = False) -> dict[str, Any]:
        """Jobs.results, awaited."""
        return await results_of(self._core, id, samples=samples)

    async def compare(self, a: str, b: str) -> dict[str, Any]:
        """Jobs.compare, awaited."""
        return await self._compare(a, b)

    async def history(
        self, case: str, *, implementation: str = "warpcall", limit: int | None = None
    ) -> dict[str, Any]:
        """Jobs.history, awaited."""
        return await self._history(case, implementation, limit)


def given(values: Mapping[str, object]) -> dict[str, object]:
    """What is not None."""
    return {name: value for name, value in values.items() if value is not None}
