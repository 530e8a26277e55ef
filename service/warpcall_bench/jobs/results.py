"""Measurements from the database: a row of the results, a history, one case with its samples, the
differences of environments."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import NotFound
from warpcall.jobs.results import CaseDetails, CaseResults, History, HistoryPoint, Measurement
from warpcall_bench.jobs import conclusions, lifecycle, submissions
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.stored_results import result_of, summary_of
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment
from warpcall_service.text import printable

NO_GPU = "no GPU: warpcall runs plain torch here, so nothing can be concluded about its kernels"
INTERPRETED = (
    "no GPU: Triton interprets the kernels of uploads with the tag interpreted, so their times say "
    "nothing about a GPU"
)
NO_GPU_FOR_PROBLEM = "no GPU: these are times of a CPU, which say nothing about a GPU"
TWIN_EVERY = 4  # rounds: in each such one the sampler times the first implementation twice
SETS = 2  # of inputs, between which rounds alternate
FACTS_THAT_ALWAYS_DIFFER = ("host", "uuid")  # they do not change what is measured


def history(
    session: Session, caller: Caller, op: str, implementation: str, case: str, limit: int
) -> History:
    """What an implementation took in a case, in the jobs that the caller may read, the latest first."""
    query = (
        sa.select(Row, Job.id, Job.user_name, Job.fingerprint, Job.implementations)
        .join(Job, Job.number == Row.job_number)
        .where(
            Row.series_sha256 == lifecycle.series(op, implementation, case),
            submissions.readable(caller),
        )
        .order_by(Row.job_number.desc())
        .limit(limit)
    )
    found = session.execute(query).all()
    firsts = {row.job_number: json.loads(names)[0] for row, *_, names in found}
    against = _rows_of_firsts(session, op, case, firsts)
    points = []
    for (row, job_id, user, fingerprint, _), before in zip(found, [*found[1:], None], strict=False):
        measured = _measurement_of(row, case)
        first = against.get((row.job_number, row.position))
        if first is not None and first.implementation != implementation:
            pair = conclusions.checked_rows([first, measured], first.implementation)
            measured = pair[1]
        points.append(
            HistoryPoint(
                job=job_id,
                user=user,
                finished_at=moment(row.finished_ms),
                environment=row.environment,
                changed=[] if before is None else _changed(before[:4], (row, fingerprint)),
                measurement=measured,
            )
        )
    return History(op=op, implementation=implementation, case=case, points=points)


def _rows_of_firsts(
    session: Session, op: str, case: str, firsts: Mapping[int, str]
) -> dict[tuple[int, int], Measurement]:
    """The rows of a case that others are compared with, by the number of the job and the position.

    Args:
        firsts: name of the first implementation, by the number of the job.
    """
    series = {lifecycle.series(op, name, case) for name in firsts.values()}
    rows = session.scalars(
        sa.select(Row).where(Row.series_sha256.in_(series), Row.job_number.in_(firsts))
    )
    return {
        (row.job_number, row.position): _measurement_of(row, case)
        for row in rows
        if row.implementation == firsts[row.job_number]
    }


def _measurement_of(row: Row, case: str) -> Measurement:
    return measurement(
        row.position,
        case,
        row.implementation,
        row.source_sha256,
        row.problem_sha256,
        row.summary,
    )


def _changed(before: Any, now: Any) -> list[str]:
    """What differs between two measurements of a history: facts of the environment, the source."""
    (row_before, *_, facts_before), (row_now, *_, facts_now) = before, now
    changed = [*differences(json.loads(facts_before or "{}"), json.loads(facts_now or "{}"))]
    for what, hashes in (
        ("source", {row_before.source_sha256, row_now.source_sha256}),
        ("problem", {row_before.problem_sha256, row_now.problem_sha256}),
    ):
        if len(hashes - {None}) > 1:  # None in old rows, and for ops of the library
            changed.append(what)
    return sorted(changed)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The facts that differ between two fingerprints: the value in `a`, then the value in `b`."""
    return {
        name: [a.get(name), b.get(name)]
        for name in sorted({*a, *b} - {*FACTS_THAT_ALWAYS_DIFFER})
        if a.get(name) != b.get(name)
    }


def facts(job: Job, caller: Caller) -> dict[str, Any] | None:
    """The fingerprint of the environment of a job; guests do not learn the names of machines."""
    if job.fingerprint is None:
        return None
    found: dict[str, Any] = json.loads(job.fingerprint)
    hidden = FACTS_THAT_ALWAYS_DIFFER if caller.jobs is not None else ()
    return {name: value for name, value in found.items() if name not in hidden}


def remarks(job: Job) -> list[str]:
    """What a reader should know about all results of a job: which implementations failed or were not
    checked, and whether there was a GPU."""
    detail = [printable(job.detail)] if job.detail and job.state in ("partial", "succeeded") else []
    return [*detail, *device_remarks(job)]


def device_remarks(job: Job) -> list[str]:
    """What a reader should know about the device of a job: nothing if it was a GPU."""
    fingerprint = json.loads(job.fingerprint or "{}")
    if fingerprint.get("kind") != "cpu":
        return []
    general = NO_GPU if job.problem_sha256 is None else NO_GPU_FOR_PROBLEM
    has_uploads = any("/" in name for name in (job.op, *json.loads(job.implementations)))
    return [general, INTERPRETED] if has_uploads else [general]


def measurements(
    session: Session, job: Job, positions: Sequence[int] | None = None
) -> list[Measurement]:
    """Rows of the cases at these positions, case by case, with the implementations in the order of
    the request. None means all cases."""
    names = json.loads(job.implementations)
    found = session.execute(
        sa.select(
            Row.position,
            JobCase.key,
            Row.implementation,
            Row.source_sha256,
            Row.problem_sha256,
            Row.summary,
        )
        .join(
            JobCase,
            sa.and_(JobCase.job_number == Row.job_number, JobCase.position == Row.position),
        )
        .where(
            Row.job_number == job.number,
            sa.true() if positions is None else Row.position.in_(positions),
        )
    ).all()
    return by_case([measurement(*row) for row in found], names)


def by_case(rows: Iterable[Measurement], names: Sequence[str]) -> list[Measurement]:
    """Rows case by case, with the implementations in the order of the request. Those of cases in
    which the time of the first implementation is no basis for a verdict have no verdict.

    Args:
        names: the implementations of the request.
    """
    found: defaultdict[int, list[Measurement]] = defaultdict(list)
    for row in rows:
        found[row.position].append(row)
    return [
        row
        for position in sorted(found)
        for row in conclusions.checked_rows(
            sorted(found[position], key=lambda one: names.index(one.implementation)), names[0]
        )
    ]


def measurement(
    position: int,
    case: str,
    implementation: str,
    source_sha256: str | None,
    problem_sha256: str | None,
    summary: str,
) -> Measurement:
    """A row of the results from the summary that the database stores.

    It has no verdict if its own time is no basis for one. See `by_case` for the rows of a case.
    """
    stored = summary_of(summary)
    relative = stored.get("relative") or {}
    stored.setdefault("traceback", None)  # older servers kept none
    row = checked(
        Measurement,
        {
            **{
                field.name: stored[field.name]
                for field in fields(Measurement)
                if field.name in stored
            },
            "position": position,
            "case": case,
            "implementation": implementation,
            "source_sha256": source_sha256,
            "problem_sha256": problem_sha256,
            "ratio": relative.get("ratio"),
            "ratio_low": relative.get("low"),
            "ratio_high": relative.get("high"),
            "verdict": conclusions.word(relative.get("verdict")),
        },
    )
    return conclusions.checked_row(row)


def find_case(session: Session, caller: Caller, job_id: str, position: int) -> CaseDetails:
    """One measured case with its rows and all samples.

    Raises:
        NotFound: there is no such job, it is private to another user, or it has not measured a case
            at this position.
    """
    job = submissions.find(session, caller, job_id)
    case = session.get(JobCase, (job.number, position))
    if case is None or case.result is None:
        raise NotFound(
            f"the job {job.id} has {job.cases_total} cases and has measured {job.cases_done}, "
            f"none of them at position {position}",
            field="position",
        )
    result = result_of(case.result)
    names = json.loads(job.implementations)
    rows = session.execute(
        sa.select(Row.implementation, Row.source_sha256, Row.problem_sha256, Row.summary).where(
            Row.job_number == job.number, Row.position == position
        )
    ).all()
    measured = [measurement(position, case.key, *row) for row in rows]
    return checked(
        CaseDetails,
        {
            **case_fields(position, case.key, result, case.finished_ms or 0, samples=True),
            "job": job.id,
            "op": job.op,
            "spec": json.loads(case.spec),
            "measurements": by_case(measured, names),
            "input_sets": input_sets(result["rounds"]),
        },
    )


def case_fields(
    position: int, key: str, result: Mapping[str, Any], finished_ms: int, *, samples: bool
) -> dict[str, Any]:
    """The fields of `CaseResults`, from the sampler's result."""
    limit = result["limit"]
    return {
        **{field.name: result[field.name] for field in fields(CaseResults) if field.name in result},
        "a_a": _twins(result.get("a_a")),
        "position": position,
        "case": key,
        "limit_us": None if limit is None else limit["median_us"],
        "finished_at": moment(finished_ms),
        "samples_us": {one["name"]: one["samples_us"] for one in result["implementations"]}
        if samples
        else None,
        "readings": result.get("readings") if samples else None,  # older servers stored none
    }


def _twins(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How the first implementation compares with itself."""
    return None if found is None else {**found, "verdict": conclusions.word(found["verdict"])}


def input_sets(rounds: int) -> list[int]:
    """The set of inputs that each round begins with.

    The sampler changes the set from round to round, and once more after each round with a twin, so
    that rounds with a twin alternate as well (`measuring/_rounds.py`).
    """
    return [(number + number // TWIN_EVERY) % SETS for number in range(rounds)]
