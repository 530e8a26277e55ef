"""Compares two jobs by their samples, a few cases at a time.

The samples are not unpacked in this process. Each request to a lane carries the stored results of a
few cases, and the lane answers with the rows of these cases.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs.results import RATIOS, ComparedRow, Comparison, why_no_verdict
from warpcall_bench.jobs import answers, exports, spread, submissions
from warpcall_bench.jobs.exports import Case
from warpcall_bench.jobs.measurements import basis_for_verdict, measurement, series, word
from warpcall_bench.jobs.spread import Spread
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_service.formats.payloads import checked, to_json
from warpcall_service.identity import Caller
from warpcall_service.lanes.messages import frame

# A lane needs some 20 ms for a request of this size. Checks of other users' calls wait for it.
PART_CASES = 4
NEVER: Spread = {"groups": [], "repeats": 0}


@dataclass(frozen=True, slots=True)
class CasePair:
    """A case in two jobs; None for a job that has not measured it."""

    key: str
    a: Case | None
    b: Case | None

    @property
    def nbytes(self) -> int:
        """Size of the stored results in bytes."""
        return sum(case.nbytes for case in (self.a, self.b) if case is not None)


@dataclass(slots=True)
class JobPair:
    """Two jobs that are compared.

    Attributes:
        op: of the first job.
        numbers: numbers of the two jobs.
        environments: those in which they ran, one or two; None for a job that has not run.
        cases: in the order of the first job, followed by those that only the second one has.
        empty: the answer without its rows.
        repeated: what was measured repeatedly in each environment.
        only: by job, what only this job has measured, with the positions of the cases. `rows` adds
            to it.
        no_verdict: why there is no verdict, by the key of a case and the implementation.
            `lane_request` adds to it.
    """

    op: str
    numbers: tuple[int, int]
    environments: frozenset[str | None]
    cases: Sequence[CasePair]
    empty: Comparison
    repeated: list[Spread] = field(default_factory=list)
    only: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {"a": [], "b": []})
    no_verdict: dict[tuple[str, str], str] = field(default_factory=dict)
    _comma: bytes = b""

    def parts(self) -> Iterator[Sequence[CasePair]]:
        """The cases, divided into the parts that one request each compares."""
        return exports.in_parts(self.cases, PART_CASES)

    def head(self) -> bytes:
        """The JSON of the answer up to its first row."""
        return to_json(self.empty).partition(b'"rows":[')[0] + b'"rows":['

    def rows(self, part: Sequence[CasePair], answer: Mapping[str, Any]) -> bytes:
        """The JSON of the rows of some cases, from a lane's answer to their `lane_request`."""
        texts = []
        for case, compared in zip(part, answer["cases"], strict=True):
            for row in compared["rows"]:
                why = self.no_verdict.get((case.key, row["implementation"]), "")
                nothing = dict.fromkeys(RATIOS) if why else {}
                row = {**row, "verdict": word(row["verdict"])}
                found = checked(ComparedRow, {"case": case.key, **row, **nothing, "why": why})
                texts.append(self._comma + to_json(found))
                self._comma = b","
            for name, one in (("a", case.a), ("b", case.b)):
                if one is not None:
                    names = compared[f"only_{name}"]
                    self.only[name] += [(one.position, f"{case.key} by {n}") for n in names]
        return b"".join(texts)

    def tail(self) -> bytes:
        """The JSON of the answer after its last row."""
        only_a, only_b = (
            [text for _, text in sorted(self.only[name], key=lambda one: one[0])]
            for name in ("a", "b")
        )
        return to_json(replace(self.empty, only_a=only_a, only_b=only_b)).partition(b'"rows":[')[2]


def pair_of(session: Session, caller: Caller, first_id: str, second_id: str) -> JobPair:
    """Two jobs that the caller may read.

    Raises:
        NotFound: one of the jobs does not exist, or is private to another user.
    """
    first = submissions.find(session, caller, first_id)
    second = submissions.find(session, caller, second_id)
    facts = [_facts(job) for job in (first, second)]
    empty = Comparison(
        a=first.id,
        b=second.id,
        same_environment=first.environment is not None and first.environment == second.environment,
        differences=answers.differences(*facts),
        rows=[],
        only_a=[],
        only_b=[],
    )
    first_cases, second_cases = (
        {case.key: case for case in exports.measured(session, job)} for job in (first, second)
    )
    cases = [
        CasePair(key, first_cases.get(key), second_cases.get(key))
        for key in {**first_cases, **second_cases}
    ]
    numbers = (first.number, second.number)
    environments = frozenset((first.environment, second.environment))
    repeated = [
        spread.of_environment(session, environment or "", numbers) for environment in environments
    ]
    return JobPair(first.op, numbers, environments, cases, empty, repeated)


def _facts(job: Job) -> dict[str, Any]:
    """What the results of a job depend on besides its cases and implementations."""
    facts: dict[str, Any] = json.loads(job.fingerprint or "{}")
    if job.problem_sha256 is not None:
        facts["problem_sha256"] = job.problem_sha256
    return facts


def lane_request(session: Session, pair: JobPair, part: Sequence[CasePair]) -> bytes:
    """The request to a lane that compares some cases."""
    a, b = pair.numbers
    _note_no_verdict(session, pair, part)
    a_results = _stored(session, a, [case.a for case in part])
    b_results = _stored(session, b, [case.b for case in part])
    repeated = _repeated(session, pair, part)
    cases = [
        {
            "a": None if case.a is None else a_results[case.a.position],
            "b": None if case.b is None else b_results[case.b.position],
            "repeated": repeated[case.key],
        }
        for case in part
    ]
    return frame({"compare": {"cases": cases, "repeated": pair.repeated}})


def _note_no_verdict(session: Session, pair: JobPair, part: Sequence[CasePair]) -> None:
    """Note which rows of some cases have a time, in either job, that is no basis for a verdict."""
    for number, job in zip(pair.numbers, ("a", "b"), strict=True):
        keys = {one.position: case.key for case in part if (one := getattr(case, job)) is not None}
        stored = session.scalars(
            sa.select(Row).where(
                Row.job_number == number, Row.position.in_(keys), ~basis_for_verdict()
            )
        )
        for row in (measurement(one, keys[one.position]) for one in stored):
            why = why_no_verdict(row.status, row.tags) or "invalid"
            pair.no_verdict.setdefault((row.case, row.implementation), f"{why} in {job}")


def _repeated(
    session: Session, pair: JobPair, part: Sequence[CasePair]
) -> dict[str, dict[str, list[Spread]]]:
    """What was measured repeatedly of each case and implementation, in each environment."""
    names = {
        name
        for text in session.scalars(
            sa.select(Job.implementations).where(Job.number.in_(pair.numbers))
        )
        for name in json.loads(text)
    }
    wanted = {series(pair.op, name, case.key): (case.key, name) for case in part for name in names}
    repeated: dict[str, dict[str, list[Spread]]] = {case.key: {} for case in part}
    for environment in pair.environments:
        found = spread.of_series(session, environment or "", wanted.keys(), pair.numbers)
        for one, (key, name) in wanted.items():
            repeated[key].setdefault(name, []).append(found.get(one, NEVER))
    return repeated


def _stored(session: Session, number: int, cases: Sequence[Case | None]) -> dict[int, str]:
    """The stored results of some cases in base64, by the case's position."""
    found = session.execute(
        sa.select(JobCase.position, JobCase.result).where(
            JobCase.job_number == number,
            JobCase.position.in_([case.position for case in cases if case is not None]),
        )
    )
    return {position: base64.b64encode(result or b"").decode() for position, result in found}
