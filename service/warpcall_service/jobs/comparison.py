"""Two jobs side by side: what both measured, by their samples.

Samples are not unpacked here. Each question to a lane carries the stored results of a few cases, as
they are, and its answer has all rows of these cases.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs.results import ComparedRow, Comparison
from warpcall_service.identity import Caller
from warpcall_service.jobs import exports, results, submissions
from warpcall_service.jobs.exports import Case
from warpcall_service.jobs.models import checked, to_json
from warpcall_service.lanes.messages import frame
from warpcall_service.store.tables import JobCase

# A row takes a lane 1 ms, a whole question some 20 ms. Checks of others' calls wait for so long.
PART_CASES = 4


@dataclass(frozen=True, slots=True)
class Both:
    """A case in the two jobs; None where a job has not measured it."""

    key: str
    a: Case | None
    b: Case | None

    @property
    def nbytes(self) -> int:
        """Bytes of the results as they are stored."""
        return sum(case.nbytes for case in (self.a, self.b) if case is not None)


@dataclass(slots=True)
class Pair:
    """Two jobs that are compared.

    Attributes:
        numbers: of the two jobs.
        cases: in the order of the first job, then those that only the second one has.
        empty: the answer without its rows.
        only: what only one job has measured, by job: each with the position of its case.
    """

    numbers: tuple[int, int]
    cases: Sequence[Both]
    empty: Comparison
    only: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {"a": [], "b": []})
    _comma: bytes = b""

    def parts(self) -> Iterator[Sequence[Both]]:
        """A few cases at a time, for a question each."""
        return exports.in_parts(self.cases, PART_CASES)

    def head(self) -> bytes:
        """The answer up to its rows, as JSON."""
        return to_json(self.empty).partition(b'"rows":[')[0] + b'"rows":['

    def rows(self, part: Sequence[Both], answer: Mapping[str, Any]) -> bytes:
        """The rows of some cases, as JSON, from a lane's answer."""
        texts = []
        for case, compared in zip(part, answer["cases"], strict=True):
            for row in compared["rows"]:
                found = checked(ComparedRow, {"case": case.key, **row})
                texts.append(self._comma + to_json(found))
                self._comma = b","
            for name, one in (("a", case.a), ("b", case.b)):
                if one is not None:
                    names = compared[f"only_{name}"]
                    self.only[name] += [(one.position, f"{case.key} by {n}") for n in names]
        return b"".join(texts)

    def tail(self) -> bytes:
        """The answer after its rows, as JSON."""
        only_a, only_b = (
            [text for _, text in sorted(self.only[name], key=lambda one: one[0])]
            for name in ("a", "b")
        )
        return to_json(replace(self.empty, only_a=only_a, only_b=only_b)).partition(b'"rows":[')[2]


def pair(session: Session, caller: Caller, first_id: str, second_id: str) -> Pair:
    """Two jobs of the caller.

    Raises:
        NotFound: one of them is not there.
    """
    first = submissions.find(session, caller, first_id)
    second = submissions.find(session, caller, second_id)
    facts = [json.loads(job.fingerprint or "{}") for job in (first, second)]
    empty = Comparison(
        a=first.id,
        b=second.id,
        same_environment=first.environment is not None and first.environment == second.environment,
        differences=results.differences(*facts),
        rows=[],
        only_a=[],
        only_b=[],
    )
    ours, theirs = (
        {case.key: case for case in exports.measured(session, job)} for job in (first, second)
    )
    cases = [Both(key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs}]
    return Pair((first.number, second.number), cases, empty)


def lane_request(session: Session, given: Pair, part: Sequence[Both]) -> bytes:
    """What to ask a lane about some cases."""
    a, b = given.numbers
    ours = _stored(session, a, [case.a for case in part])
    theirs = _stored(session, b, [case.b for case in part])
    return frame(
        {
            "compare": [
                {
                    "a": None if case.a is None else ours[case.a.position],
                    "b": None if case.b is None else theirs[case.b.position],
                }
                for case in part
            ]
        }
    )


def _stored(session: Session, number: int, cases: Sequence[Case | None]) -> dict[int, str]:
    """Results as they are stored, in base64, by position."""
    found = session.execute(
        sa.select(JobCase.position, JobCase.result).where(
            JobCase.job_number == number,
            JobCase.position.in_([case.position for case in cases if case is not None]),
        )
    )
    return {position: base64.b64encode(result or b"").decode() for position, result in found}
