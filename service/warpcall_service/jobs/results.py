"""What jobs measured: as JSON, CSV, Markdown and Parquet, and over time."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import UnsupportedMedia
from warpcall_service.callers import Caller
from warpcall_service.jobs import queue, records
from warpcall_service.jobs.models import CaseResults, History, HistoryPoint, Measurement, Results
from warpcall_service.jobs.views import moment
from warpcall_service.schema import Job, JobCase
from warpcall_service.schema import Measurement as Row

CSV, MARKDOWN, PARQUET = "text/csv", "text/markdown", "application/vnd.apache.parquet"
MEDIA = (CSV, MARKDOWN, PARQUET)
FACTS_THAT_ALWAYS_DIFFER = ("host", "uuid")  # told, but no change of what is measured


def rendered(
    session: Session, caller: Caller, job_id: str, form: str, samples: bool
) -> tuple[str, bytes]:
    """Media type and body of a job's results.

    Raises:
        NotFound: no such job of the caller.
        UnsupportedMedia: Parquet, where pyarrow is not installed.
    """
    job = records.find(session, caller, job_id)
    if form == "json":
        return "application/json", _results(session, job, samples).model_dump_json().encode()
    rows = [measurement.model_dump() for measurement in measured(session, job)]
    if form == "csv":
        return CSV, _csv(rows)
    if form == "markdown":
        return MARKDOWN, _markdown(job, rows)
    return PARQUET, _parquet(rows)


def measured(session: Session, job: Job) -> list[Measurement]:
    """All rows, case by case, implementations in the order in which they were asked for."""
    names = json.loads(job.implementations)
    rows = session.execute(
        sa.select(Row, JobCase.key)
        .join(
            JobCase,
            sa.and_(JobCase.job_number == Row.job_number, JobCase.position == Row.position),
        )
        .where(Row.job_number == job.number)
    ).all()
    found = [_measurement(row, key) for row, key in rows]
    return sorted(found, key=lambda m: (m.position, names.index(m.implementation)))


def cases(session: Session, job: Job) -> Iterator[tuple[JobCase, Mapping[str, Any]]]:
    """Each case that is measured, and the sampler's whole result."""
    for case in session.scalars(
        sa.select(JobCase)
        .where(JobCase.job_number == job.number, JobCase.result.is_not(None))
        .order_by(JobCase.position)
    ):
        assert case.result is not None
        yield case, json.loads(zlib.decompress(case.result))


def history(
    session: Session, caller: Caller, op: str, implementation: str, case: str, limit: int
) -> History:
    """A series of measurements in jobs that the caller may see."""
    query = (
        sa.select(Row, Job.id, Job.user_name, Job.fingerprint)
        .join(Job, Job.number == Row.job_number)
        .where(Row.series_sha256 == queue.series(op, implementation, case))
        .order_by(Row.job_number.desc())
        .limit(limit)
    )
    if not caller.may("admin"):
        query = query.where(Job.user_name == caller.name)
    found = session.execute(query).all()
    facts = [json.loads(fingerprint or "{}") for *_, fingerprint in found]
    points = []
    for (row, job_id, user, _), now, before in zip(found, facts, [*facts[1:], None], strict=False):
        points.append(
            HistoryPoint(
                job=job_id,
                user=user,
                finished_at=moment(row.finished_ms),
                environment=row.environment,
                changed=[] if before is None else sorted(differences(before, now)),
                measurement=_measurement(row, case),
            )
        )
    return History(op=op, implementation=implementation, case=case, points=points)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The facts of two fingerprints that are not the same."""
    return {
        name: [a.get(name), b.get(name)]
        for name in sorted({*a, *b} - {*FACTS_THAT_ALWAYS_DIFFER})
        if a.get(name) != b.get(name)
    }


def _results(session: Session, job: Job, samples: bool) -> Results:
    told = []
    for case, result in cases(session, job):
        shown = {name: result[name] for name in CaseResults.model_fields if name in result}
        limit = result["limit"]
        told.append(
            CaseResults(
                **shown,
                position=case.position,
                case=case.key,
                limit_us=None if limit is None else limit["median_us"],
                finished_at=moment(case.finished_ms or 0),
                samples_us={i["name"]: i["samples_us"] for i in result["implementations"]}
                if samples
                else None,
            )
        )
    return Results(
        id=job.id,
        state=job.state,  # type: ignore[arg-type]  # one of them
        environment=job.environment,
        fingerprint=None if job.fingerprint is None else json.loads(job.fingerprint),
        measurements=measured(session, job),
        cases=told,
    )


def _measurement(row: Row, case: str) -> Measurement:
    told = json.loads(row.summary)
    relative = told.get("relative") or {}
    shown = {name: told[name] for name in Measurement.model_fields if name in told}
    return Measurement(
        **shown,
        position=row.position,
        case=case,
        implementation=row.implementation,
        ratio=relative.get("ratio"),
        ratio_low=relative.get("low"),
        ratio_high=relative.get("high"),
        verdict=relative.get("verdict"),
    )


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(Measurement.model_fields))
    writer.writeheader()
    writer.writerows({**row, "tags": " ".join(row["tags"])} for row in rows)
    return file.getvalue().encode()


def _markdown(job: Job, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The columns that a reader compares; CSV has them all."""
    lines = [
        f"`{job.op}` on {job.environment or 'nothing yet'}, {job.precision}, job {job.id}",
        "",
        "| case | implementation | median us | 95 % interval | ratio | verdict | GB/s | of the limit |",
        "| --- | --- | --: | --: | --: | --- | --: | --: |",
    ]
    for row in rows:
        ratio = _interval(row["ratio"], row["ratio_low"], row["ratio_high"], "{:.3f}")
        share = "" if row["share_of_limit"] is None else f"{100 * row['share_of_limit']:.0f} %"
        between = _between(row["ci_low_us"], row["ci_high_us"], "{:.2f}")
        lines.append(
            f"| {row['case']} | {row['implementation']} | "
            f"{_number(row['median_us'], '{:.2f}') or row['status']} | {between} | {ratio} | "
            f"{row['verdict'] or ''} | {_number(row['gb_per_s'], '{:.0f}')} | {share} |"
        )
    return ("\n".join(lines) + "\n").encode()


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _between(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f"{form.format(low)} to {form.format(high)}"


def _interval(value: float | None, low: float | None, high: float | None, form: str) -> str:
    between = _between(low, high, form)
    return _number(value, form) + (f" ({between})" if between else "")


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UnsupportedMedia(
            "this server writes no Parquet: its operator has to install pyarrow "
            "(the extra `parquet`); csv has the same columns",
            field="format",
        ) from None
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.list_(pa.string())}
    schema = pa.schema(
        (name, kinds[_kind(field.annotation)]) for name, field in Measurement.model_fields.items()
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), sink)
    return bytes(sink.getvalue())


def _kind(annotation: Any) -> type:
    """The plain type of a column, which may also be null."""
    text = str(annotation)
    return next((t for t in (float, int, list) if t.__name__ in text), str)
