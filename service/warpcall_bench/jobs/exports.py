"""The results of a job as a file: JSON or CSV, rendered in parts.

A job can have 8,000 rows and 40 million samples, so an export is never in memory as a whole. Each
part is read in a transaction of its own. All parts still show one state of the job: the list of
measured cases is read once, at the beginning, and the rows of a case are written together and never
change.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import JobTimes
from warpcall.jobs.results import CaseResults, Measurement, Results
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.answers import case_fields, facts, remarks, times
from warpcall_bench.jobs.measurements import is_undecided, measurements, with_reasons
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.runs.stored_results import result_of
from warpcall_bench.uploads import odd_cases
from warpcall_service.formats.payloads import checked, to_json
from warpcall_service.identity import Caller

MEDIA = {"json": "application/json", "csv": "text/csv"}

# A part takes some 5 ms to render. Rendering competes with the event loop for the interpreter's
# lock.
PART_CASES = 16
PART_BYTES = 64 << 10  # of stored (compressed) results: some 8,000 samples

FORMULAS = ("=", "+", "-", "@")  # how those of spreadsheets begin
TIMES = tuple(field.name for field in fields(JobTimes))
NO_COLUMNS: Mapping[str, str] = {}
CASE_COLUMNS = ("op", "shapes", "dtypes", "params")
INPUT = re.compile(r"\w+=(?P<dtype>[A-Z]\w*)\[(?P<shape>[\d,]*)\](:.*)?")  # of a case's key

Step = Callable[[Session], bytes]  # reads and renders the next part
Rows = Sequence[Measurement]


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Stored = TypeVar("Stored", bound=_Sized)


class Case(NamedTuple):
    """A measured case; `nbytes` is the size of its stored result."""

    position: int
    key: str
    nbytes: int


def begin(
    session: Session, caller: Caller, job_id: str, form: str, samples: bool
) -> Iterator[Step]:
    """The steps that render the results of a job, in order. Each may run in its own transaction.

    Raises:
        NotFound: there is no such job, or it is private to another user.
    """
    job = submissions.find(session, caller, job_id)
    found = measured(session, job)
    where = facts(job, caller)
    if form == "csv":
        return csv_steps(job, found, where or {})
    known = [*remarks(job), *odd_cases.remarks(session, job)]
    return _json_steps(job, found, known, samples, where)


def measured(session: Session, job: Job) -> list[Case]:
    """The measured cases of a job, in order."""
    found = session.execute(
        sa.select(JobCase.position, JobCase.key, sa.func.length(JobCase.result))
        .where(JobCase.job_number == job.number, JobCase.result.is_not(None))
        .order_by(JobCase.position)
    )
    return [Case(*row) for row in found]


def in_parts(cases: Sequence[Stored], most: int) -> Iterator[Sequence[Stored]]:
    """The cases in order, in parts of at most `most` cases and PART_BYTES, but at least one case."""
    part: list[Stored] = []
    for case in cases:
        nbytes = sum(other.nbytes for other in part)
        if part and (len(part) == most or nbytes + case.nbytes > PART_BYTES):
            yield part
            part = []
        part.append(case)
    if part:
        yield part


def rows_of(session: Session, job: Job, part: Sequence[Case]) -> Rows:
    """The rows of some measured cases, which say why they are undecided."""
    rows = measurements(session, job, [case.position for case in part])
    undecided = {row.position for row in rows if is_undecided(row)}
    if not undecided:
        return rows
    # Only the whole result of a case has its margin, and to unpack it takes milliseconds.
    found = session.execute(
        sa.select(JobCase.position, JobCase.result).where(
            JobCase.job_number == job.number, JobCase.position.in_(undecided)
        )
    )
    margins = {position: result_of(result)["margin"] for position, result in found if result}
    return with_reasons(rows, margins, job.precision)


def _json_steps(
    job: Job,
    cases: Sequence[Case],
    known: list[str],
    samples: bool,
    fingerprint: dict[str, Any] | None,
) -> Iterator[Step]:
    empty = Results(
        id=job.id,
        state=job.state,  # type: ignore[arg-type]  # the database holds only states
        environment=job.environment,
        fingerprint=fingerprint,
        remarks=known,
        measurements=[],
        cases=[],
        times=times(job),
    )
    head, middle, tail = to_json(empty).rpartition(b'],"cases":[')
    yield lambda session: head
    for number, part in enumerate(_parts_of_rows(cases)):
        yield partial(_json_rows, job=job, part=part, comma=number > 0)
    yield lambda session: middle
    for number, part in enumerate(in_parts(cases, PART_CASES)):
        yield partial(_json_cases, job=job, part=part, samples=samples, comma=number > 0)
    yield lambda session: tail


def _json_rows(session: Session, job: Job, part: Sequence[Case], comma: bool) -> bytes:
    return joined([to_json(row) for row in rows_of(session, job, part)], comma)


def _json_cases(
    session: Session, job: Job, part: Sequence[Case], samples: bool, comma: bool
) -> bytes:
    found = session.scalars(
        sa.select(JobCase)
        .where(
            JobCase.job_number == job.number, JobCase.position.in_([case.position for case in part])
        )
        .order_by(JobCase.position)
    )
    shown = (checked(CaseResults, case_fields(case, samples=samples)) for case in found)
    return joined([to_json(case) for case in shown], comma)


def joined(texts: Sequence[bytes], comma: bool) -> bytes:
    """Some members of a list in JSON; `comma` if others stand before them."""
    return (b"," if comma and texts else b"") + b",".join(texts)


def _parts_of_rows(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """The cases in parts of PART_CASES. The size is ignored, because rows hold no samples."""
    for begin in range(0, len(cases), PART_CASES):
        yield cases[begin : begin + PART_CASES]


def csv_steps(
    job: Job, cases: Sequence[Case], where: Mapping[str, Any], more: Mapping[str, str] = NO_COLUMNS
) -> Iterator[Step]:
    """The steps that render the results of a job as CSV, the first one its head.

    Args:
        where: the facts of the environment.
        more: further columns, which are the same in each row.
    """
    spent = times(job)
    of_job = {**more, "host": where.get("host", ""), "device": job.model or job.device or ""}
    of_job |= dict.fromkeys(TIMES, "") if spent is None else spent.to_dict()
    table = _Csv(of_job)
    yield lambda session: table.head()
    for part in _parts_of_rows(cases):
        yield partial(_csv_rows, table=table, job=job, part=part)


def _csv_rows(session: Session, table: _Csv, job: Job, part: Sequence[Case]) -> bytes:
    return table.body(rows_of(session, job, part))


def case_columns(key: str) -> dict[str, str]:
    """A case as columns: for "permute x=BF16[8,4] dims=1,0" op "permute", shapes "8x4",
    dtypes "BF16" and params "dims=1,0". Inputs are in the order of the op, separated by spaces.
    """
    op, *rest = key.split(" ")
    inputs = [found for part in rest if (found := INPUT.fullmatch(part))]
    return {
        "op": op,
        "shapes": " ".join(found["shape"].replace(",", "x") or "scalar" for found in inputs),
        "dtypes": " ".join(found["dtype"] for found in inputs),
        "params": " ".join(part for part in rest if not INPUT.fullmatch(part)),
    }


class _Csv:
    """Has all columns. No text is one that a spreadsheet would compute as a formula.

    Args:
        of_job: further columns, which are the same in each row.
    """

    def __init__(self, of_job: Mapping[str, Any]) -> None:
        self._of_job = of_job
        self._file = io.StringIO()
        names = [field.name for field in fields(Measurement)]
        self._writer = csv.DictWriter(self._file, [*names, *CASE_COLUMNS, *of_job])

    def head(self) -> bytes:
        self._writer.writeheader()
        return self._taken()

    def body(self, rows: Rows) -> bytes:
        for row in rows:
            cells = {**vars(row), **case_columns(row.case), "tags": " ".join(row.tags)}
            cells |= self._of_job
            self._writer.writerow({name: _csv_cell(value) for name, value in cells.items()})
        return self._taken()

    def _taken(self) -> bytes:
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text.encode()


def _csv_cell(value: Any) -> Any:
    """The value of a cell. A text that begins as formulas do has an apostrophe before it."""
    begins = value.lstrip()[:1] if isinstance(value, str) else ""
    return f"'{value}" if begins in FORMULAS else value
