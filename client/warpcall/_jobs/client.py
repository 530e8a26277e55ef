"""Benchmark jobs in the SDK: submit, list, watch, cancel, read and compare them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, Literal, TypeVar, Unpack, get_args
from urllib.parse import urlencode

from warpcall import wire
from warpcall._blocking import blocking, each_now, run_now
from warpcall._core import Core
from warpcall._extras.arguments import check_choice
from warpcall._extras.tables import Listed
from warpcall._jobs.events import events
from warpcall._jobs.groups import (
    AsyncJobGroup,
    JobGroup,
    group_from,
    group_path,
    group_results,
    is_group,
)
from warpcall._jobs.job import (
    PATH,
    AsyncJob,
    Job,
    JobHandle,
    checked_id,
    details_from,
    path_of,
    results_of,
)
from warpcall._jobs.markdown import group_markdown, results_markdown
from warpcall._jobs.names import is_problem
from warpcall._jobs.parse import parse
from warpcall._jobs.tracked import bencher, github_action_benchmark
from warpcall._tensors import new_id
from warpcall.errors import InvalidInput
from warpcall.groups import GroupInfo, SubmittedGroup
from warpcall.jobs import (
    STATES,
    JobEvent,
    JobKind,
    JobList,
    JobPreview,
    Queue,
    Share,
    ShareList,
    State,
    SubmittedJob,
)
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.jobs.results import Board, Comparison, History, Results

CREATED = (200, 201)
GROUPS_PATH = wire.GROUPS_PATH
SHARES_PATH = "/v1/shares"
BOARD_PATH = "/v1/board"

Format = Literal["csv", "json", "markdown", "bencher", "github-action-benchmark"]
"""A format of a file with results."""
FORMATS: tuple[Format, ...] = get_args(Format)
GROUP_FORMATS: tuple[Format, ...] = ("csv", "json", "markdown")

# Columns of lists in a notebook.
LISTED = (
    "id",
    "user",
    "title",
    "implementations",
    "state",
    "created_at",
    "tags",
)
LISTED_SHARES = ("id", "job", "other", "user", "created_at", "expires_at")

JobT = TypeVar("JobT", bound=JobHandle)


class _JobsBase(Generic[JobT]):
    """The requests whose answers are jobs, of `Jobs` and of `AsyncJobs`."""

    def __init__(self, core: Core, kind: type[JobT]) -> None:
        self._core = core
        self._kind = kind

    async def _submit(self, request: JobRequest, key: str | None) -> JobT:
        headers = {"Idempotency-Key": new_id() if key is None else key}
        body = request.to_dict()
        payload = await self._core.request_json("POST", PATH, body, headers, CREATED)
        return self._kind(self._core, parse(SubmittedJob, payload, "a job"))

    async def _submit_group(
        self, request: JobRequest, gpus: Sequence[str], key: str | None
    ) -> GroupInfo:
        headers = {"Idempotency-Key": new_id() if key is None else key}
        body = {"gpus": [*gpus], "job": request.to_dict()}
        payload = await self._core.request_json("POST", GROUPS_PATH, body, headers, CREATED)
        return parse(SubmittedGroup, payload, "a group")

    async def _get(self, id_: str) -> JobT:
        return self._kind(self._core, details_from(await self._core.get_json(path_of(id_))))

    async def _list(self, wanted: Mapping[str, object]) -> list[JobT]:
        check_choice("state", wanted.get("state"), STATES)
        payload = await self._core.get_json(f"{PATH}?{urlencode(given(wanted))}")
        page = parse(JobList, payload, "a list of jobs")
        return Listed((self._kind(self._core, info) for info in page.jobs), LISTED)

    async def _cancel(self, id_: str) -> JobT:
        payload = await self._core.request_json("POST", path_of(id_, "/cancel"))
        return self._kind(self._core, details_from(payload))

    def _events(self, id_: str, after: int) -> AsyncGenerator[JobEvent, None]:
        return events(self._core, path_of(id_, "/events"), after, None, f"the job {id_}")


class AsyncJobs(_JobsBase[AsyncJob]):
    """`Jobs` for `AsyncClient`; its methods are awaited."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, AsyncJob)

    async def submit(
        self,
        op: str | JobRequest,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJob:
        """As `Jobs.submit`, awaited."""
        return await self._submit(requested(op, options), idempotency_key)

    async def submit_group(
        self,
        op: str | JobRequest,
        *,
        gpus: Sequence[str],
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJobGroup:
        """As `Jobs.submit_group`, awaited."""
        found = await self._submit_group(requested(op, options), gpus, idempotency_key)
        return AsyncJobGroup(self._core, found)

    async def group(self, id: str) -> AsyncJobGroup:
        """As `Jobs.group`, awaited."""
        return AsyncJobGroup(self._core, group_from(await self._core.get_json(group_path(id))))

    async def preview(self, op: str | JobRequest, **options: Unpack[JobOptions]) -> JobPreview:
        """What a submission would cost, such as its `cases` and `estimated_s`. Nothing is queued."""
        body = requested(op, options).to_dict()
        payload = await self._core.request_json("POST", f"{PATH}/preview", body)
        return parse(JobPreview, payload, "a preview of a job")

    async def get(self, id: str) -> AsyncJob:
        """As `Jobs.get`, awaited."""
        return await self._get(id)

    async def list(
        self,
        *,
        state: State | None = None,
        op: str | None = None,
        tag: str | None = None,
        user: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        kind: JobKind | None = None,
    ) -> list[AsyncJob]:
        """As `Jobs.list`, awaited."""
        wanted = {"state": state, "op": op, "tag": tag, "user": user, "kind": kind}
        return await self._list({**wanted, "before": before, "limit": limit})

    async def shares(self, *, user: str | None = None) -> Sequence[Share]:
        """The user's share links, the latest first.

        Args:
            user: "all" for the links of others to the user's jobs too, for an administrator all.
        """
        query = urlencode(given({"user": user}))
        payload = await self._core.get_json(f"{SHARES_PATH}?{query}")
        found = parse(ShareList, payload, "a list of share links").shares
        return Listed(found, LISTED_SHARES)

    async def revoke_share(self, id: str) -> None:
        """Revoke a share link, by the id that `shares` shows.

        Raises:
            NotFound: there is no such link, or it is not the user's.
        """
        await self._core.delete_at(f"{SHARES_PATH}/{checked_id(id)}")

    async def queue(self) -> Queue:
        """The jobs of all users that run or wait, in order."""
        return parse(Queue, await self._core.get_json(f"{PATH}/queue"), "the queue of jobs")

    async def cancel(self, id: str) -> AsyncJob:
        """As `Jobs.cancel`, awaited."""
        return await self._cancel(id)

    def events(self, id: str, after: int = 0) -> AsyncIterator[JobEvent]:
        """As `Jobs.events`, for `async for`."""
        return self._events(id, after)

    async def results(self, id: str, *, samples: bool = False) -> Results:
        """As `Job.results`, for the job of this id."""
        return await results_of(self._core, id, samples=samples)

    async def export(self, id: str, form: Format = "csv") -> bytes:
        """What the job has measured as the bytes of a file, a row for each implementation of a case.

        Args:
            form: "csv", "json", "markdown", or what other tools take: "bencher" for Bencher's
                adapter "json", "github-action-benchmark" for its tool "customSmallerIsBetter". CSV
                has the op, the shapes and the dtypes of each case as columns. The files of other
                tools have the times that are a basis for a verdict.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            InvalidInput: the format is one of another tool, and the id that of a group: a group has
                "csv", "json" and "markdown", with a column for its models.
        """
        if is_group(id):
            if one_of(form, GROUP_FORMATS, "form") == "markdown":
                return group_markdown(await group_results(self._core, id)).encode()
            return await self._core.get_bytes(group_path(id, f"/results?format={form}"))
        if one_of(form, FORMATS, "form") in ("csv", "json"):
            return await self._core.get_bytes(path_of(id, f"/results?format={form}"))
        found = await results_of(self._core, id, samples=False)
        if form == "bencher":
            return bencher(found).encode()
        if form == "github-action-benchmark":
            return github_action_benchmark(found).encode()
        job = details_from(await self._core.get_json(path_of(id)))
        return results_markdown(job, found).encode()

    async def compare(self, a: str, b: str) -> Comparison:
        """What both jobs measured, with the ratio of the times of `b` to those of `a`."""
        payload = await self._core.get_json(path_of(a, f"/compare/{checked_id(b)}"))
        return parse(Comparison, payload, "a comparison of two jobs")

    async def history(
        self, case: str, *, implementation: str | None = None, limit: int | None = None
    ) -> History:
        """What a case took, job by job, the latest first.

        Args:
            case: key of the case, as results have it under `case`. It begins with the op.
            implementation: its name. None means "warpcall", and "torch" for a problem.
            limit: on the number of points, 100 by default, at most 500.
        """
        op = case.partition(" ")[0]
        if not op:
            raise InvalidInput(
                f"case must begin with its op, as results have it, got {case!r}", field="case"
            )
        name = implementation or ("torch" if is_problem(op) else "warpcall")
        wanted = {"op": op, "implementation": name, "case": case, "limit": limit}
        payload = await self._core.get_json(f"{PATH}/history?{urlencode(given(wanted))}")
        return parse(History, payload, "a history of a case")

    async def board(
        self,
        op: str,
        *,
        device: str | None = None,
        case: str | None = None,
        ranks_all: bool = False,
    ) -> Board:
        """Who leads in the cases of an op on a device, and whether the lead is real.

        Args:
            device: its name, such as "NVIDIA H200". None means the one that measured the op last.
            case: key of one case, whose board also has the `steps` to its best results. None means
                all cases.
            ranks_all: whether uploads that are not verified kernels are ranked, too. Their code could
                fake its own time.
        """
        wanted = given({"op": op, "device": device, "case": case})
        if ranks_all:
            wanted["all"] = "true"
        payload = await self._core.get_json(f"{BOARD_PATH}?{urlencode(wanted)}")
        return parse(Board, payload, "a board")


class Jobs(_JobsBase[Job]):
    """Benchmark jobs on the server's devices. They wait in a queue that is fair to users.

    job = gpu.jobs.submit(
        "permute", sweep={"shapes": [[64, 64]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
    )
    for row in job.wait().measurements:
        print(row.case, row.implementation, row.median_us, row.verdict)
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core, Job)

    def submit(
        self,
        op: str | JobRequest,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Queue a benchmark.

        Args:
            op: name of the op or of a problem, or a whole request.
            options: the other fields of `warpcall.JobRequest`, which describes them. Beside a whole
                request they replace its fields.
            idempotency_key: a second submission with the same key finds the job of the first one.
                By default each call uses a new key, so that a retry after a lost answer makes no
                second job.

        Raises:
            InvalidInput: the job cannot be measured; `field` names the reason.
            Busy: the user has too many jobs that are not finished.
        """
        return run_now(self._submit(requested(op, options), idempotency_key))

    def submit_group(
        self,
        op: str | JobRequest,
        *,
        gpus: Sequence[str],
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> JobGroup:
        """Queue the same benchmark on several models of a GPU: one question, a part for each model.

            found = gpu.jobs.submit_group("permute", gpus=["H100", "H200"], sweep=sweep).wait()
            print(found)

        Each part is an ordinary job, which waits and runs by itself. A part whose model no server has waits
        until one comes, and the others do not wait for it.

        Args:
            op: name of the op or of a problem, or a whole request without `gpu`.
            gpus: 2 to 8 models, each as `gpu` of `warpcall.JobRequest`.
            options, idempotency_key: as for `submit`.

        Raises:
            InvalidInput: the job cannot be measured, or no server has any of the models.
            Busy: the user has too many jobs that are not finished; each part is one.
        """
        found = run_now(self._submit_group(requested(op, options), gpus, idempotency_key))
        return JobGroup(self._core, found)

    def group(self, id: str) -> JobGroup:
        """The group of this id.

        Raises:
            NotFound: there is no such group, or its jobs are private to another user.
        """
        return JobGroup(self._core, group_from(run_now(self._core.get_json(group_path(id)))))

    def get(self, id: str) -> Job:
        """The job of this id.

        Raises:
            NotFound: there is no such job, or it is private to another user.
        """
        return run_now(self._get(id))

    def list(
        self,
        *,
        state: State | None = None,
        op: str | None = None,
        tag: str | None = None,
        user: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        kind: JobKind | None = None,
    ) -> list[Job]:
        """Jobs that the user may read, the latest first.

        Args:
            state, op, tag: list only jobs with this; None means any.
            user: whose jobs to list; "all" for those of all users, None for the user's own.
            before: id of the last job of the previous page.
            limit: on the number of jobs, 50 by default, at most 500.
            kind: "scratch" for scratch runs; None means benchmarks.
        """
        wanted = {"state": state, "op": op, "tag": tag, "user": user, "kind": kind}
        return run_now(self._list({**wanted, "before": before, "limit": limit}))

    def cancel(self, id: str) -> Job:
        """End the job of this id, whether it waits or runs. What it has measured is kept."""
        return run_now(self._cancel(id))

    def events(self, id: str, after: int = 0) -> Iterator[JobEvent]:
        """As `Job.events`, for the job of this id."""
        return each_now(self._events(id, after))

    preview = blocking(AsyncJobs.preview)
    shares = blocking(AsyncJobs.shares)
    revoke_share = blocking(AsyncJobs.revoke_share)
    queue = blocking(AsyncJobs.queue)
    results = blocking(AsyncJobs.results)
    export = blocking(AsyncJobs.export)
    compare = blocking(AsyncJobs.compare)
    history = blocking(AsyncJobs.history)
    board = blocking(AsyncJobs.board)


def requested(op: str | JobRequest, options: JobOptions) -> JobRequest:
    """The request that the arguments of `submit` stand for."""
    return replace(op, **options) if isinstance(op, JobRequest) else JobRequest(op, **options)


def one_of(value: str, allowed: Sequence[str], field: str) -> str:
    """The value itself, if it is one of those allowed. Raises InvalidInput if it is not."""
    if value not in allowed:
        raise InvalidInput(
            f"{field} must be one of {', '.join(allowed)}, got {value!r:.60}", field=field
        )
    return value


def given(values: Mapping[str, object]) -> dict[str, object]:
    """The items whose value is not None."""
    return {name: value for name, value in values.items() if value is not None}
