"""The cases of jobs on problems: made by the problem's own code, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from warpcall.dtypes import ITEMSIZE
from warpcall.errors import InvalidInput
from warpcall_bench.runs.messages import NO_ANSWER, CheckedCase, problem_version
from warpcall_bench.uploads.answers import CaseAnswer
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.tables import StoredProblem

MOST_KEPT = 20_000  # cases that are kept for the next submission, of all jobs together
BYTES = {**ITEMSIZE, "C128": 16}
LINE = re.compile(r"^([\w.]+: )?line \d+(?=: )")  # at the begin of an error


@dataclass(frozen=True, slots=True)
class NamedProblem:
    """A version of a problem, as the server needs it for a job.

    Attributes:
        name: without the version.
        inputs, params: their names.
    """

    name: str
    source: str
    inputs: Sequence[str]
    params: Sequence[str]

    @classmethod
    def of(cls, row: StoredProblem) -> NamedProblem:
        """The problem that is in a row."""
        names = json.loads(row.outline)
        name = f"{row.user_name}/{row.name}"
        return cls(name, row.source, names["inputs"], names["params"])

    @property
    def sha256(self) -> str:
        """The version."""
        return problem_version(self.source)


class ProblemCases:
    """Has problems make the cases of jobs. Cases are kept for a while: a submission often follows a
    preview of the same job.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._kept: OrderedDict[str, list[CheckedCase]] = OrderedDict()

    async def make(
        self, user: str, problem: NamedProblem, job: Mapping[str, Any]
    ) -> list[CheckedCase]:
        """The cases of a job.

        Args:
            user: name of the user who asks for them.
            job: `cases` or a `sweep`, or neither for odd cases; `max_cases`, `memory_bytes`,
                `device`, and whether they are `timed` and `small`.

        Raises:
            InvalidInput: there are none, because the request is wrong or the problem raises; the
                error names the field.
            Busy: the user has too many checks that are not finished, or this one waited too long.
            Unavailable: no process can be started.
        """
        key = json.dumps([problem.name, problem.sha256, job], sort_keys=True)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        answer = await self._checks.cases(user, problem.name, problem.source, job)
        if answer.cases is None:
            if answer.field == "source":
                raise InvalidInput(
                    f"op: {problem.name} cannot be measured: {answer.error}", field="op"
                )
            # A line of the problem's source, which the caller need not have written.
            error = LINE.sub(rf"\g<0> of {problem.name}", answer.error or "", count=1)
            raise InvalidInput(error, field=answer.field)
        # In a thread, because 1,000 cases take some 20 ms; it lets the event loop run in between.
        found = await asyncio.to_thread(checked_cases, answer.cases, problem, job)
        if found is None:
            raise InvalidInput(f"op: {problem.name} cannot be measured: {NO_ANSWER}", field="op")
        self._kept[key] = found
        while sum(map(len, self._kept.values())) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found


def checked_cases(
    cases: Sequence[Any], problem: NamedProblem, job: Mapping[str, Any]
) -> list[CheckedCase] | None:
    """The cases of a job from an answer, or None if no honest process could have made them.

    Args:
        job: as in `ProblemCases.make`.
    """
    number = _number(job)
    if not 0 < len(cases) <= job["max_cases"] or number not in (None, len(cases)):
        return None
    found: dict[str, CheckedCase] = {}
    for given in cases:
        try:
            case = CaseAnswer.model_validate(given)
        except ValidationError:
            return None
        if case.key in found or not _is_case(case, problem, job["memory_bytes"]):
            return None
        found[case.key] = {
            "spec": given["spec"],
            "key": case.key,
            "device_bytes": case.device_bytes,
        }
    return list(found.values())


def _number(job: Mapping[str, Any]) -> int | None:
    """The number of cases that a job asks for; None if the problem decides."""
    if "cases" not in job and "sweep" not in job:
        return None
    if "cases" in job:
        return len(job["cases"])
    sweep = job["sweep"]
    axes = [*sweep.get("params", {}).values(), *sweep.get("sizes", {}).values()]
    return math.prod(len(values) for values in (*axes, sweep.get("dtypes") or [""]))


def _is_case(case: CaseAnswer, problem: NamedProblem, memory_bytes: int) -> bool:
    inputs = case.spec.inputs
    nbytes = sum(math.prod(one.shape) * BYTES.get(one.dtype, math.inf) for one in inputs.values())
    return (
        case.key.startswith(f"{problem.name} ")
        and set(inputs) == {*problem.inputs}
        and set(case.spec.params) == {*problem.params}
        and nbytes <= case.device_bytes <= memory_bytes
    )
