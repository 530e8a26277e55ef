"""Regression checks in the SDK: jobs measure until it is decided which cases passed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Unpack

from warpcall._blocking import blocking
from warpcall._jobs.client import AsyncJobs, Jobs, requested
from warpcall._jobs.job import details_from, path_of
from warpcall.errors import InvalidInput
from warpcall.jobs import JobDetails, Precision
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.jobs.results import NOT_ON_GPU, Comparison, Results
from warpcall.regressions import (
    ALLOWED,
    JOBS,
    MOST_ALLOWED,
    TAG,
    Regression,
    RegressionRow,
    judge,
    judge_same,
    judge_stored,
    tag_of_repeats,
)

Judged = Callable[[JobRequest], Awaitable[tuple[Results, Regression]]]
"""Measures a job, and says what it and the jobs before it decide."""


class _RegressionsBase:
    """The requests of `Regressions` and of `AsyncRegressions`."""

    def __init__(self, jobs: Jobs | AsyncJobs) -> None:
        self._jobs = AsyncJobs(jobs._core)  # over the transport of these jobs

    async def _check(
        self,
        request: JobRequest,
        base: str | None,
        head: str | None,
        baseline: str | None,
        allowed: float,
    ) -> Regression:
        if not 0 < allowed <= MOST_ALLOWED:
            raise InvalidInput(
                f"allowed must be above 0 and at most {MOST_ALLOWED:g}, got {allowed}",
                field="allowed",
            )
        if baseline is None:
            if base is None or head is None:
                raise InvalidInput("base and head must both be given, or a baseline", field="base")
            return await self._check_pair(request, base, head, allowed)
        if base is not None:
            raise InvalidInput("base must not be given beside a baseline", field="base")
        stored = details_from(await self._jobs._core.get_json(path_of(baseline)))
        name = stored.implementations[0] if head is None else head
        return await self._check_stored(stored, request, name, allowed)

    async def _check_pair(
        self, request: JobRequest, base: str, head: str, allowed: float
    ) -> Regression:
        if base == head:
            return judge_same(request.op, head, allowed)
        found: list[Results] = []

        async def judged(wanted: JobRequest) -> tuple[Results, Regression]:
            found.append(await self._measure(wanted))
            return found[-1], judge(found, request.op, base, head, allowed)

        def may_decide(row: RegressionRow) -> bool:  # another job, of this case
            tags = {
                tag for one in found[-1].measurements if one.case == row.case for tag in one.tags
            }
            timed = row.base_us is not None and row.head_us is not None
            return timed and not tags.intersection(NOT_ON_GPU)

        wanted = replace(request, implementations=[base, head])
        return await _until_decided(judged, wanted, may_decide)

    async def _check_stored(
        self, stored: JobDetails, request: JobRequest, head: str, allowed: float
    ) -> Regression:
        if stored.op != request.op:
            raise InvalidInput(
                f"baseline must be a job of {request.op}, got {stored.id}, a job of {stored.op}",
                field="baseline",
            )
        if head not in stored.implementations:
            raise InvalidInput(
                f"head must be timed in the job {stored.id}, which timed "
                f"{', '.join(stored.implementations)}, got {head!r:.120}",
                field="head",
            )
        if request.cases is None and request.sweep is None:
            cases, sweep = stored.request.get("cases"), stored.request.get("sweep")
            request = replace(request, cases=cases, sweep=sweep)
        found: list[Comparison] = []

        async def judged(wanted: JobRequest) -> tuple[Results, Regression]:
            results = await self._measure(wanted)
            found.append(await self._jobs.compare(stored.id, results.id))
            device = (results.fingerprint or {}).get("device")
            return results, judge_stored(found, request.op, head, device, allowed)

        def has_margin(row: RegressionRow) -> bool:  # without one, no job could decide
            return row.ratio_low is not None

        return await _until_decided(judged, replace(request, implementations=[head]), has_margin)

    async def _measure(self, request: JobRequest) -> Results:
        job = await self._jobs.submit(request)
        return await job.wait()


class AsyncRegressions(_RegressionsBase):
    """`Regressions` for `AsyncClient`; its methods are awaited."""

    async def check(
        self,
        op: str | JobRequest,
        *,
        base: str | None = None,
        head: str | None = None,
        baseline: str | None = None,
        allowed: float = ALLOWED,
        **options: Unpack[JobOptions],
    ) -> Regression:
        """Measure whether `head` is slower than `base`, in one to three jobs, and wait for them.

        Args:
            op: name of the op or of a problem, or a whole request. The implementations of a request
                and its `fresh` do not count.
            base, head: names of implementations. Both are measured in the rounds of one job.
            baseline: id of a job with whose stored times `head` is compared, in place of `base`.
                `head` is then by default its first implementation, and the cases are its cases.
            allowed: by how much `head` may take longer, as a share of the time of `base`.
            options: as of `Jobs.submit`. The precision is "quick" by default. The third
                job is at least "standard".

        Raises:
            InvalidInput: it cannot be measured; `field` names the reason.
            JobFailed: a job did not succeed.
        """
        return await self._check(requested(op, options), base, head, baseline, allowed)


class Regressions(_RegressionsBase):
    """Checks whether one implementation is slower than another.

    check = gpu.regressions.check(
        "permute", base="ann/old", head="ann/new",
        sweep={"shapes": [[4096, 4096]], "dtypes": ["bf16"], "params": {"dims": [[1, 0]]}},
    )
    print(check.outcome, check.sentence)
    """

    check = blocking(AsyncRegressions.check)


async def _until_decided(
    judged: Judged, request: JobRequest, can_decide: Callable[[RegressionRow], bool]
) -> Regression:
    """Measure, and measure again what is undecided if `can_decide` says that another job may help."""
    tags = [*(request.tags or ()), TAG]
    wanted = replace(request, fresh=True, tags=tags, precision=request.precision or "quick")
    results, known = await judged(wanted)
    tags.append(tag_of_repeats(results.id))
    wanted = replace(wanted, sweep=None, tags=tags)
    for number in range(1, JOBS):
        left = {row.case for row in known.rows if row.outcome == "undecided" and can_decide(row)}
        if not left:
            break
        names = list(request.implementations or ())
        again = replace(
            wanted,
            cases=_cases(results, left),
            implementations=names[::-1] if number % 2 else names,
            precision=_longer(wanted.precision) if number == JOBS - 1 else wanted.precision,
        )
        results, known = await judged(again)
    return known


def _cases(results: Results, keys: Collection[str]) -> Sequence[dict[str, object]]:
    """The cases with these keys, as a request has them."""
    return [case.spec for case in results.cases if case.case in keys]


def _longer(precision: Precision | None) -> Precision | None:
    """The precision of the last job of a check, which is at least "standard"."""
    return "standard" if precision == "quick" else precision
