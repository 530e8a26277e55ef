"""What happens to a job in the database: its states, the results of its cases, its end.

Every function takes a session and blocks. Those that change what a user is charged lock the queue
first.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import ACTIVE, ExitClass, State, outcomes
from warpcall.jobs.results import Measurement as CaseRow
from warpcall_bench.jobs import queue
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.measurements import measurement, series
from warpcall_bench.jobs.orphans import Heartbeat
from warpcall_bench.jobs.tables import SCRATCH, Job, JobCase, JobEvent, JobShare, Measurement
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_bench.runs.runner import Outcome
from warpcall_bench.uploads import job_uploads, odd_cases
from warpcall_service.store.times import now_ms

MAX_ATTEMPTS = 2  # an interrupted job runs once more
LOST = "the server that ran it was lost"
PROGRESS_KEPT_MS = 86_400_000  # after the end of a job; for others see `jobs/expiry.py`
PRUNED_JOBS = 200  # jobs whose progress one call of `prune` deletes
MAX_DETAIL = 500  # characters of the text about implementations that failed
MOST_NAMED = 3  # implementations in that text

# The exit class of a job in which implementations failed is the first of these statuses of rows.
WORST_FIRST: tuple[ExitClass, ...] = (
    "error",
    "wrong_result",
    "crashed",
    "timeout",
    "compile_error",
    "cuda_error",
    "oom",
    "invalid",
    "unchecked",
)

# The state of a job whose run ended with each exit class; "failed" for all others.
STATES: dict[ExitClass, State] = {
    "ok": "succeeded",
    "timeout": "timed_out",
    "cancelled": "cancelled",
    "invalid": "invalid",
}


def advance(session: Session, job: Job, state: State) -> None:
    """Set the state of a job. The operation is idempotent.

    A transaction may have been committed although the server did not learn of it, so the recorder
    can write the same state again.
    """
    if job.state == state:
        return
    job.state = state
    append_event(session, job, "state", {"state": state})


def unmeasured_cases(session: Session, job: Job) -> list[tuple[int, Any]]:
    """Positions and specs of the cases that have no result yet."""
    rows = session.execute(
        sa.select(JobCase.position, JobCase.spec)
        .where(JobCase.job_number == job.number, JobCase.result.is_(None))
        .order_by(JobCase.position)
    )
    return [(position, json.loads(spec)) for position, spec in rows]


def set_environment(session: Session, job: Job, known: EnvironmentKnown) -> None:
    """Store what a run found in its environment, and what it measures.

    If earlier runs of the job measured cases of something else, or elsewhere, the job never answers
    another submission.
    """
    sources = json.loads(job.sources or "{}") if known.sources is None else known.sources
    keys = session.scalars(
        sa.select(JobCase.key).where(JobCase.job_number == job.number).order_by(JobCase.position)
    ).all()
    measured = question_sha256(
        job.op,
        json.loads(job.implementations),
        job.precision,
        keys,
        known.fingerprint["kernels_sha256"],
        sources,
        job.problem_sha256,
        race=is_race(job),
    )
    if job.cases_done and (measured, known.environment) != (job.question_sha256, job.environment):
        measured = hashlib.sha256(f"{job.id} measured several sources".encode()).hexdigest()
    job.question_sha256 = measured
    job.sources = json.dumps(sources)
    job.fingerprint = json.dumps(known.fingerprint)
    job.environment = known.environment


def is_race(job: Job) -> bool:
    """Whether the implementations of a job race."""
    return bool(json.loads(job.request).get("race", False))


def question_sha256(
    op: str,
    implementations: Sequence[str],
    precision: str,
    case_keys: Sequence[str],
    kernels_sha256: str,
    sources: Mapping[str, str],
    problem_sha256: str | None = None,
    race: bool = False,
) -> str:
    """Hash of what a job measures. Jobs with the same hash can share their results.

    Args:
        kernels_sha256: of the library, which has the reference and the inputs of an op.
        sources: hash of the source of each implementation that has one.
        problem_sha256: version of a problem; None for an op of the library.
        race: whether the implementations race.
    """
    ordered = sorted(sources.items())
    measured = [op, implementations, precision, list(case_keys), kernels_sha256, ordered]
    if problem_sha256 is not None:
        measured.append(problem_sha256)
    if race:
        measured.append("race")
    return hashlib.sha256(json.dumps(measured, separators=(",", ":")).encode()).hexdigest()


def save_case(session: Session, job: Job, position: int, result: Mapping[str, Any]) -> None:
    """Store the result of a case and a row for each implementation. The operation is idempotent."""
    case = session.get_one(JobCase, (job.number, position))
    if case.result is not None:
        return
    result = odd_cases.marked(session, job, result)
    case.result = zlib.compress(json.dumps(result, separators=(",", ":")).encode())
    case.finished_ms = now_ms()
    sources = json.loads(job.sources or "{}")
    limit_us = (result["limit"] or {}).get("median_us")
    rows = [
        Measurement(
            job_number=job.number,
            position=position,
            implementation=measured["name"],
            series_sha256=series(job.op, measured["name"], case.key),
            environment=job.environment or "",
            finished_ms=case.finished_ms,
            status=measured["status"],
            summary=json.dumps({k: v for k, v in measured.items() if k != "samples_us"}),
            source_sha256=sources.get(measured["name"]),
            problem_sha256=job.problem_sha256,
            median_us=measured["median_us"],
            limit_us=limit_us,
        )
        for measured in result["implementations"]
    ]
    session.add_all(rows)
    job.cases_done += 1
    _count_case(job, [measurement(row, case.key) for row in rows])
    done = {"position": position, "case": case.key, "cases_done": job.cases_done}
    statuses = {row.implementation: row.status for row in rows}
    append_event(session, job, "case", {**done, "statuses": statuses})


def _count_case(job: Job, rows: Sequence[CaseRow]) -> None:
    """Count a case in what lists say of the job."""
    names = json.loads(job.implementations)
    kept = json.loads(job.outcomes or "[]") or outcomes.no_cases(names)
    outcomes.add_case(kept, names[0], rows)
    job.outcomes = json.dumps(kept, separators=(",", ":"))


def end_job(
    session: Session,
    job: Job,
    state: State,
    exit_class: ExitClass,
    detail: str,
    took_ms: int = 0,
) -> None:
    """Write the end of a job.

    Args:
        state: one that ends a job.
        took_ms: duration of the run that ended; it counts only if the job was running.
    """
    if job.state in ACTIVE:
        _charge(session, job, took_ms)
    job.exit_class = exit_class
    job.detail = detail
    job.finished_ms = now_ms()
    job.state = state
    problem_number, job.problem_number = job.problem_number, None  # other jobs may still name it
    job_uploads.release_job(session, job.number, problem_number)
    data = {"state": state, "exit_class": exit_class, "detail": detail}
    append_event(session, job, "state", data)


def interrupt(
    session: Session, job: Job, detail: str, took_ms: int, *, counts: bool = True
) -> None:
    """Queue a job again whose run was lost, or end it if it was cancelled or has run too often.

    Args:
        counts: whether the run counts as an attempt. A run does not count if its server stopped in
            good order and put the job back.
    """
    if job.cancel_ms is not None:
        end_job(session, job, "cancelled", "cancelled", "cancelled while it ran", took_ms)
        return
    if job.kind == SCRATCH:  # its user has seen output of it, and a command may count its runs
        once = f"{detail}; a scratch run is not started again"
        end_job(session, job, "interrupted", "interrupted", once, took_ms)
        return
    if counts and job.attempts >= MAX_ATTEMPTS:
        again = f"{detail}; it was run {job.attempts} times"
        end_job(session, job, "interrupted", "interrupted", again, took_ms)
        return
    _charge(session, job, took_ms)
    if not counts:
        job.attempts -= 1
    append_event(session, job, "state", {"state": "interrupted", "detail": detail})
    job.runner = None
    advance(session, job, "queued")


def end_run(session: Session, job: Job, outcome: Outcome, *, counts: bool) -> None:
    """Write the end of a run: the job ends, or is queued again if the run was interrupted.

    A job that measured all its cases succeeded only if each implementation is valid in each case.
    If some are not, the job is partial. If none is in any case, the job failed. A job that only
    checks results also succeeded if nothing is wrong and each implementation is right in some case:
    its detail counts the results that could not be checked.

    Args:
        counts: as for `interrupt`.
    """
    if job.state in ACTIVE:
        _add_times(job, outcome)
    took_ms = round(outcome.took_s * 1e3)
    exit_class, detail = outcome.exit_class, outcome.detail
    if exit_class == "interrupted":
        interrupt(session, job, detail, took_ms, counts=counts)
        return
    state = STATES.get(exit_class, "failed")
    if exit_class == "ok" and job.kind != SCRATCH:
        found = _statuses(session, job)
        if "ok" not in found.distinct:
            exit_class = _worst(found.distinct)
            state = "invalid" if exit_class == "invalid" else "failed"
            checked = job.precision == "check"
            lacks = "is known to be right" if checked else "could be measured"
            detail = f"no implementation {lacks} in any case"
        elif found.distinct != {"ok"}:
            if job.precision != "check" or not found.passed:
                exit_class, state = _worst(found.distinct), "partial"
            detail = _failures(found)
    end_job(session, job, state, exit_class, detail, took_ms)


def _add_times(job: Job, outcome: Outcome) -> None:
    """Add where the time of a run went to that of the job's runs before."""
    job.device_ms = (job.device_ms or 0) + round(outcome.device_s * 1e3)
    job.device_wait_ms = (job.device_wait_ms or 0) + round(outcome.device_wait_s * 1e3)
    job.compile_ms = (job.compile_ms or 0) + round(outcome.compile_s * 1e3)
    job.setup_ms = (job.setup_ms or 0) + round(outcome.setup_s * 1e3)


def take_over(session: Session, number: int, heartbeat: Heartbeat) -> bool:
    """Queue a job again whose server is lost; False if the job has a newer heartbeat or has ended.

    Args:
        heartbeat: the last one that was seen.
    """
    queue.lock(session)
    query = sa.select(Job).where(
        Job.number == number,
        Job.fence == heartbeat.fence,
        Job.ran_ms == heartbeat.ran_ms,
        Job.state.in_(ACTIVE),
    )
    job = session.scalars(query.with_for_update(key_share=True)).one_or_none()
    if job is not None:
        interrupt(session, job, LOST, job.ran_ms)
    return job is not None


def requeue_own(session: Session, runner: str) -> int:
    """Queue again the jobs that this server ran before it was restarted; how many these are.

    Args:
        runner: id of this server.
    """
    queue.lock(session)
    jobs = session.scalars(
        sa.select(Job).where(Job.state.in_(ACTIVE), Job.runner == runner).order_by(Job.number)
    ).all()
    for job in jobs:
        interrupt(session, job, LOST, job.ran_ms)
    return len(jobs)


def prune(session: Session, since_ms: int) -> int:
    """Delete the progress events of jobs that ended PROGRESS_KEPT_MS ago; where to continue next
    time.

    Args:
        since_ms: jobs that ended before this time have none left. Pass what the last call returned.
    """
    ended = session.execute(
        sa.select(Job.number, Job.finished_ms)
        .where(Job.finished_ms.between(since_ms, now_ms() - PROGRESS_KEPT_MS))
        .order_by(Job.finished_ms)
        .limit(PRUNED_JOBS)
    ).all()
    numbers = [number for number, _ in ended]
    session.execute(
        sa.delete(JobEvent)
        .where(JobEvent.job_number.in_(numbers), JobEvent.kind == "progress")
        .execution_options(synchronize_session=False)
    )
    return ended[-1].finished_ms or since_ms if ended else since_ms


def _charge(session: Session, job: Job, took_ms: int) -> None:
    """Charge a user the duration of a run in place of the estimate that `claim` charged."""
    queue.lock(session)
    job.took_ms += took_ms
    share = session.get(JobShare, job.user_name)
    if share is not None:
        share.end_us += took_ms * 1000 - job.cost_us


class _Statuses(NamedTuple):
    """The statuses of a job's rows.

    Attributes:
        numbers: number of cases by status, of each implementation in the order of the request.
        timed: whether some row has a time. A job that only checks results has none.
    """

    numbers: Mapping[str, Counter[str]]
    timed: bool

    @property
    def distinct(self) -> set[str]:
        """The statuses that occur."""
        return {status for counts in self.numbers.values() for status in counts}

    @property
    def passed(self) -> bool:
        """Whether each implementation is right in some case, and no worse than unchecked in others."""
        each = [{*counts} for counts in self.numbers.values()]
        return all("ok" in found and found <= {"ok", "unchecked"} for found in each)


def _statuses(session: Session, job: Job) -> _Statuses:
    rows = session.execute(
        sa.select(
            Measurement.implementation,
            Measurement.status,
            sa.func.count(),
            sa.func.count(Measurement.median_us),
        )
        .where(Measurement.job_number == job.number)
        .group_by(Measurement.implementation, Measurement.status)
    ).all()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, status, number, _ in rows:
        found[name][status] = number
    ordered = {name: found[name] for name in json.loads(job.implementations) if name in found}
    return _Statuses(ordered, any(timed for _, status, _, timed in rows if status == "ok"))


def _failures(found: _Statuses) -> str:
    """Which implementations failed, in how many cases, and how: "mine has no time in 2 of 4 cases:
    wrong_result in 1, timeout in 1"."""
    failed = {name: counts for name, counts in found.numbers.items() if {*counts} != {"ok"}}
    lacks = "has no time" if found.timed else "is not known to be right"
    texts = []
    for name, counts in [*failed.items()][:MOST_NAMED]:
        total = counts.total()
        cases = f"{total - counts['ok']} of {total} case{'s' * (total != 1)}"
        how = sorted((-number, status) for status, number in counts.items() if status != "ok")
        whys = ", ".join(f"{status} in {-number}" for number, status in how)
        texts.append(f"{name} {lacks} in {cases}: {whys}")
    if more := len(failed) - len(texts):
        texts.append(f"and {more} more implementation{'s' * (more != 1)}")
    text = "; ".join(texts)
    return text if len(text) <= MAX_DETAIL else f"{text[: MAX_DETAIL - 4]} ..."


def _worst(statuses: Collection[str]) -> ExitClass:
    return next((status for status in WORST_FIRST if status in statuses), "invalid")
