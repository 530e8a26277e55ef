"""Verdicts from the database: one implementation of a job, seen against the job's first one.

Every function takes a session and blocks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall import wire
from warpcall.errors import NotFound
from warpcall.evaluations import (
    NEXT_STEPS,
    EvaluatedCase,
    Evaluation,
    EvaluationLinks,
    EvaluationState,
    Failure,
)
from warpcall.jobs import COMPLETED, UNFINISHED, Verdict
from warpcall.jobs.results import Measurement
from warpcall.jobs.scores import NOTHING, Ratio, Sums, add_ratio, score_of
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.measurements import measurements, no_verdict, series, with_reasons
from warpcall_bench.jobs.models import JobRequest, without_version
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.stored_results import result_of
from warpcall_bench.uploads.database import SHOWN_DIGITS
from warpcall_bench.uploads.new_versions import NewImplementation
from warpcall_service.formats.payloads import checked as made
from warpcall_service.identity import Caller
from warpcall_service.text import brief, printable

MAX_TEXT = 2000  # characters of a failure
ID = re.compile(r"([0-9a-f]{4,12})-([1-9][0-9]?)")
RECENT = 8  # jobs with the same first row that are looked through for an answer
WIDEST_SAME = 0.03  # as the sampler has it: with a wider margin, nothing is called the same
CUT = "\n(...)\n"


def find(session: Session, caller: Caller, id_: str) -> tuple[Job, int]:
    """The job of an evaluation, and the place of the candidate in it.

    Raises:
        NotFound: there is no such evaluation, or it is private to another user.
    """
    parts = ID.fullmatch(id_)
    if parts is not None:
        job, place = submissions.find(session, caller, parts[1]), int(parts[2])
        if place < len(json.loads(job.implementations)):
            return job, place
    raise NotFound(
        f"there is no evaluation {brief(id_)}; its id is that of a job, a hyphen and the place of an "
        "implementation in it, from 1",
        field="id",
    )


def evaluation(
    session: Session, job: Job, place: int, *, index: int = 0, reused: bool = False
) -> Evaluation:
    """What a job says of one of its implementations, as far as it has measured."""
    names = json.loads(job.implementations)
    name, ended = names[place], job.state not in UNFINISHED
    rows = measurements(session, job)
    margins = _margins(session, job) if ended else {}
    own = with_reasons([one for one in rows if one.implementation == name], margins, job.precision)
    firsts = {one.position: one for one in rows if one.implementation == names[0]}
    cases = [_case(row, firsts[row.position]) for row in own]
    compiled = None if not own else all(row.status != "compile_error" for row in own)
    state: EvaluationState = "running"
    if ended or job.state == "queued":
        state = "done" if ended else "waiting"
    failure = next((one.failure for one in cases if one.failure is not None), None)
    if ended and failure is None and len(cases) < job.cases_total:
        kind = job.exit_class if job.exit_class in NEXT_STEPS else "killed"
        failure = failed(str(kind), printable(job.detail) or f"its job ended as {job.state}")
    return made(
        Evaluation,
        {
            "id": f"{job.id}-{place}",
            "index": index,
            "state": state,
            "op": job.op,
            "implementation": name,
            "source_sha256": _source(job, name, own),
            "verified": all(row.verified for row in own) if own else None,
            "baseline": names[0],
            "precision": job.precision,
            "compiled": compiled,
            "right": _right(cases, job.cases_total),
            **_together(cases, job.cases_total, margins),
            "marks": [*dict.fromkeys(mark for one in cases for mark in one.marks)],
            "failure": failure,
            "cases": cases,
            "reused": reused,
            "links": EvaluationLinks(
                evaluation=f"{wire.EVALUATIONS_PATH}/{job.id}-{place}",
                job=f"{wire.JOBS_PATH}/{job.id}",
                results=f"{wire.JOBS_PATH}/{job.id}/results",
                page=f"/jobs/{job.id}",
            ),
        },
    )


def refused(
    request: JobRequest, name: str, new: NewImplementation | None, text: str, *, index: int = 0
) -> Evaluation:
    """The verdict on a source that cannot be imported, or cannot be compiled as CUDA C++."""
    verified = None if new is None else new.verified
    is_cuda = verified is not None and verified["language"] == "cuda"
    return made(
        Evaluation,
        {
            **dict.fromkeys(_TOGETHER),
            "id": None,
            "index": index,
            "state": "done",
            "op": without_version(request.op),
            "implementation": name,
            "source_sha256": None if new is None else new.sha256,
            "verified": verified is not None,
            "baseline": request.implementations[0],
            "precision": request.precision,
            "compiled": False,
            "right": False,
            "marks": [],
            "failure": failed("compile_error" if is_cuda else "import_error", text),
            "why": "",
            "cases": [],
            "reused": False,
            "links": None,
        },
    )


def failed(kind: str, text: str) -> Failure:
    """A failure with what to do next. Of a long text the middle is left out."""
    if len(text) > MAX_TEXT:
        half = (MAX_TEXT - len(CUT)) // 2
        text = text[:half] + CUT + text[-half:]
    return made(Failure, {"kind": kind, "text": text, "next": NEXT_STEPS[kind]})


def find_measured(
    session: Session,
    caller: Caller,
    request: JobRequest,
    checked: Checked,
    name: str,
    sha256: str,
    private: bool,
) -> tuple[Job, int] | None:
    """The caller's latest job that has measured a candidate against the same baseline, in the same
    cases and the same environment, and the place of the candidate in it.

    The job may have timed others, too. Each time of the candidate and of the baseline must be valid: a
    failure need not happen again. Privacy is as in `submissions`.
    """
    op, baseline = without_version(request.op), request.implementations[0]
    plain = name.partition("@")[0]  # a job with several versions of a name has them with versions
    names = {name, plain, f"{plain}@{sha256[:SHOWN_DIGITS]}"}
    keys = [case["key"] for case in checked["cases"]]
    query = (
        sa.select(Job)
        .join(Row, Row.job_number == Job.number)
        .where(
            Row.series_sha256.in_(series(op, one, keys[0]) for one in names),
            Row.position == 0,
            Row.source_sha256 == sha256,
            Job.user_name == caller.name,
            Job.precision == request.precision,
            Job.environment == checked["environment"],
            Job.cases_total == len(keys),
            Job.state.in_(COMPLETED),
            Job.problem_sha256.is_not_distinct_from(checked.get("problem_sha256")),
        )
        .order_by(Job.number.desc())
        .limit(RECENT)
    )
    if private or request.private is not None:
        query = query.where(Job.private.is_(private))
    if "nodes" in checked:
        query = query.where(Job.runner.in_(checked["nodes"]))
    for job in session.scalars(query):
        timed = json.loads(job.implementations)
        facts, sources = json.loads(job.fingerprint or "{}"), json.loads(job.sources or "{}")
        if (
            json.loads(job.request).get("race")  # those that left a race early have few samples
            or timed[0] != baseline
            or sources.get(baseline) != checked["sources"].get(baseline)
            or facts.get("kernels_sha256") != checked["kernels_sha256"]
        ):
            continue
        for place, one in enumerate(timed):
            of_candidate = place and one in names and sources.get(one) == sha256
            if of_candidate and _has_measured(session, job, keys, (baseline, one)):
                return job, place
    return None


def _has_measured(session: Session, job: Job, keys: Sequence[str], names: tuple[str, str]) -> bool:
    """Whether a job has exactly these cases, and a valid result of both implementations in each."""
    stored = session.scalars(
        sa.select(JobCase.key).where(JobCase.job_number == job.number).order_by(JobCase.position)
    ).all()
    valid = session.scalars(
        sa.select(sa.func.count()).where(
            Row.job_number == job.number, Row.implementation.in_(names), Row.status == "ok"
        )
    ).one()
    return [*stored] == [*keys] and valid == len(keys) * len({*names})


def _case(row: Measurement, first: Measurement) -> EvaluatedCase:
    failure, why = None, row.why_undecided
    if row.status != "ok":
        text = "\n".join(filter(None, (row.error, row.traceback))) or row.status
        failure = failed(row.status, text)
    elif row.ratio is None and row.median_us is not None:
        why = no_verdict(row, first)
    return EvaluatedCase(
        position=row.position,
        case=row.case,
        right=None if row.status == "unchecked" else row.status == "ok",
        time_us=row.median_us if row.status == "ok" else None,
        ratio=row.ratio,
        ratio_low=row.ratio_low,
        ratio_high=row.ratio_high,
        verdict=row.verdict,
        share_of_limit=row.share_of_limit if row.status == "ok" else None,
        marks=row.tags,
        failure=failure,
        why=why,
    )


def _right(cases: Sequence[EvaluatedCase], total: int) -> bool | None:
    if any(one.right is False for one in cases):
        return False
    known = len(cases) == total and all(one.right for one in cases)
    return True if known else None


_TOGETHER = ("time_us", "ratio", "ratio_low", "ratio_high", "verdict", "share_of_limit")


def _together(
    cases: Sequence[EvaluatedCase], total: int, margins: Mapping[int, float]
) -> dict[str, Any]:
    """The fields of all cases together. None of them is known while one of the cases lacks it."""
    found: dict[str, Any] = {**dict.fromkeys(_TOGETHER), "why": ""}
    if not cases or len(cases) < total:
        return found
    found["why"] = next((one.why for one in cases if one.why), "")
    found["time_us"] = _geometric([one.time_us for one in cases])
    found["share_of_limit"] = _geometric([one.share_of_limit for one in cases])
    sums: Sums = {**NOTHING}
    for one in cases:
        if one.ratio is not None:
            add_ratio(sums, Ratio(one.ratio, one.ratio_low, one.ratio_high))
    score = score_of("", "", sums, 0, total)
    if score is None or score.compared < total:
        return found
    found |= {name: getattr(score, name) for name in ("ratio", "ratio_low", "ratio_high")}
    if total == 1:
        return {**found, "verdict": cases[0].verdict}
    verdict = _verdict(score.ratio_low, score.ratio_high, max(margins.values(), default=0.0))
    return {**found, "verdict": verdict, "why": found["why"] if verdict == "undecided" else ""}


def _verdict(low: float | None, high: float | None, margin: float) -> Verdict:
    """What an interval of a ratio says if log ratios within `margin` are the same."""
    if low is None or high is None:
        return "undecided"
    below, above = math.log(low), math.log(high)
    if above < -margin:
        return "faster"
    if below > margin:
        return "slower"
    alike = min(margin, WIDEST_SAME)
    return "same" if -alike <= below and above <= alike else "undecided"


def _geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None if a value is missing or not positive."""
    if not all(values):
        return None
    return math.exp(math.fsum(math.log(value) for value in values if value) / len(values))


def _margins(session: Session, job: Job) -> Mapping[int, float]:
    """The margin of each measured case, by position."""
    found = session.scalars(
        sa.select(JobCase).where(JobCase.job_number == job.number, JobCase.result.is_not(None))
    )
    return {one.position: result_of(one.result)["margin"] for one in found if one.result}


def _source(job: Job, name: str, rows: Sequence[Measurement]) -> str | None:
    known = [row.source_sha256 for row in rows if row.source_sha256]
    return known[0] if known else json.loads(job.sources or "{}").get(name)
