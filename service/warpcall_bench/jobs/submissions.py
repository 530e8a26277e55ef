"""What users do with jobs in the database: submit, find, list and cancel them.

Every function takes a session and blocks. The scheduler's part is in `queue.py` and `lifecycle.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Busy, Forbidden, InvalidInput, NotFound
from warpcall.jobs import PRIORITIES, UNFINISHED, JobKind
from warpcall.jobs.request import OPTIONS
from warpcall_bench.jobs import lifecycle, queue, search
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.models import JobRequest, without_version
from warpcall_bench.jobs.tables import BENCHMARK, Job, JobCase, JobTag
from warpcall_bench.runs.messages import Checked
from warpcall_bench.uploads import job_uploads
from warpcall_bench.uploads.tables import StoredProblem, UploadedVersion
from warpcall_service.identity import Caller
from warpcall_service.store import ids
from warpcall_service.store.times import now_ms
from warpcall_service.text import brief

ID = re.compile(r"[0-9a-f]{4,12}")  # the whole id has 12 digits
QUOTA = "user_max_jobs"
PACE_JOBS = 20  # the latest finished jobs, whose mean pace (actual over nominal) is the estimate's
SLOWEST_PACE, FASTEST_PACE = 20.0, 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected duration of a job.

    Attributes:
        nominal_s: if each measurement uses all the time that the precision gives it.
        estimated_s: corrected by the durations of the latest jobs of this op and precision.
    """

    nominal_s: float
    estimated_s: float


@dataclass(frozen=True, slots=True)
class Filter:
    """Which of the jobs that the caller may read to list; None means any. By default there are no scratch
    runs.

    `before` is an id: only older jobs are listed. An `implementation` is among those of the job, in
    any version. All `words` are in the texts of the job, `found` is in its outcome, and it was
    submitted on the days `since` and `until` or between them. A `sort` is one of `search.SORTS`,
    after a - for the largest first.
    """

    user: str | None = None
    state: str | None = None
    op: str | None = None
    tag: str | None = None
    before: str | None = None
    limit: int = 50
    implementation: str | None = None
    words: str = ""
    found: str | None = None
    since: date | None = None
    until: date | None = None
    sort: str = "-submitted"
    kind: JobKind | None = "benchmark"


def submit(
    session: Session,
    caller: Caller,
    request: JobRequest,
    checked: Checked,
    idempotency_key: str | None,
    max_jobs: int,
    private_by_default: bool = False,
    monitor: str | None = None,
) -> tuple[Job, bool]:
    """Queue a job, or find a job that answers the request.

    Args:
        private_by_default: applies if neither the request nor what it times decides.
        monitor: id of the monitor whose job it is. Such jobs do not count for `max_jobs`.

    Returns:
        The job, and whether it is new.

    Raises:
        InvalidInput: the Idempotency-Key came with another request before, or an uploaded
            implementation or the problem has been deleted since the request was checked.
        Busy: the user has `max_jobs` jobs that are not finished.
    """
    clock_us = queue.lock(session)
    if known := find_repeated(session, caller, sha256_of(request), idempotency_key):
        return known, False
    problem, uploads = _uploads_of(session, caller, request, checked, lock=True)
    versions = {name: row.sha256 for name, row in uploads.items()}
    checked = {**checked, "sources": {**checked["sources"], **versions}}
    private = _is_private(request, problem, uploads, private_by_default)
    if not request.fresh and (found := _find_answered(session, caller, request, checked, private)):
        return found, False
    if monitor is None:
        check_room(session, caller, max_jobs)
    expected = estimate(session, request, checked)
    job = Job(
        id=secrets.token_hex(6),  # as `ID` has it
        user_name=caller.name,
        idempotency_key=idempotency_key,
        request=_text(request.model_dump(mode="json", exclude_unset=True)),
        request_sha256=sha256_of(request),
        question_sha256=_measured_sha256(request, checked),
        op=without_version(request.op),
        implementations=_text(request.implementations),
        precision=request.precision,
        priority=PRIORITIES.index(request.priority),
        tags=_text(request.tags),
        name=request.name,
        note=request.note,
        state="queued",
        detail="",
        cases_total=len(checked["cases"]),
        cases_done=0,
        attempts=0,
        created_ms=now_ms(),
        since_us=clock_us,
        sources=_text(checked["sources"]),
        cost_us=round(expected.estimated_s * 1e6),
        nominal_ms=round(expected.nominal_s * 1e3),
        estimated_ms=round(expected.estimated_s * 1e3),
        took_ms=0,
        problem_sha256=None if problem is None else problem.sha256,
        problem_number=None if problem is None else problem.number,
        private=private,
        gpu=request.gpu,
        node=request.node,
        monitor=monitor,
        device_bytes=max(case["device_bytes"] for case in checked["cases"]),
    )
    session.add(job)
    session.flush()
    session.add_all(JobTag(job_number=job.number, tag=tag) for tag in request.tags)
    session.execute(
        sa.insert(JobCase),
        [
            {
                "job_number": job.number,
                "position": position,
                "spec": _text(case["spec"]),
                "key": case["key"],
            }
            for position, case in enumerate(checked["cases"])
        ],
    )
    job_uploads.keep_for_job(session, job.number, uploads)
    append_event(session, job, "state", {"state": "queued"})
    return job, True


def check_room(session: Session, caller: Caller, max_jobs: int) -> None:
    """Raise Busy if a user has `max_jobs` jobs that are not finished. Those of monitors do not count."""
    waiting = session.scalars(
        sa.select(sa.func.count(Job.number)).where(
            Job.user_name == caller.name, Job.state.in_(UNFINISHED), Job.monitor.is_(None)
        )
    ).one()
    if waiting >= max_jobs:
        raise Busy(
            f"{caller.name} has {waiting} jobs that are not finished, at most {max_jobs} are allowed "
            f"by the quota {QUOTA}",
            retry_after_s=60,
        )


def find_repeated(
    session: Session, caller: Caller, request_sha256: str, idempotency_key: str | None
) -> Job | None:
    """The job that was submitted with this Idempotency-Key before; None if there is none.

    Args:
        request_sha256: hash of the request.

    Raises:
        InvalidInput: that job had another request.
    """
    if idempotency_key is None:
        return None
    known = session.scalars(
        sa.select(Job).where(Job.user_name == caller.name, Job.idempotency_key == idempotency_key)
    ).one_or_none()
    if known is not None and known.request_sha256 != request_sha256:
        raise InvalidInput(
            f"Idempotency-Key must be a new one for a new request, {brief(idempotency_key)} came "
            f"with the job {known.id}, which asked for something else",
            field="idempotency-key",
        )
    return known


def estimate(session: Session, request: JobRequest, checked: Checked) -> Estimate:
    """The expected duration of a job, from the latest jobs of its op and precision.

    Partial jobs do not count, because an implementation that fails takes less time.
    """
    nominal = request.nominal_s(len(checked["cases"]), checked["implementation_s"])
    last = (
        sa.select(Job.took_ms, Job.nominal_ms)
        .where(
            Job.op == without_version(request.op),
            Job.precision == request.precision,
            Job.state == "succeeded",
        )
        .order_by(Job.number.desc())
        .limit(PACE_JOBS)
        .subquery()
    )
    took_ms, nominal_ms = session.execute(
        sa.select(sa.func.sum(last.c.took_ms), sa.func.sum(last.c.nominal_ms))
    ).one()
    pace = float(took_ms) / float(nominal_ms) if took_ms and nominal_ms else 1.0
    return Estimate(nominal, nominal * min(max(pace, FASTEST_PACE), SLOWEST_PACE))


def find_answered(
    session: Session,
    caller: Caller,
    request: JobRequest,
    checked: Checked,
    private_by_default: bool,
) -> Job | None:
    """A finished job of the caller that answers the request, or None."""
    private = is_private(session, caller, request, checked, private_by_default)
    return _find_answered(session, caller, request, checked, private)


def is_private(
    session: Session,
    caller: Caller,
    request: JobRequest,
    checked: Checked,
    private_by_default: bool,
) -> bool:
    """Whether the job of a request would be private. It raises as `submit`."""
    used = _uploads_of(session, caller, request, checked)
    return _is_private(request, *used, private_by_default)


def readable(caller: Caller) -> sa.ColumnElement[bool]:
    """Which benchmarks the caller may read: all that are not private, their own, administrators all.

    Guests may read the jobs of their share link, unless these are private. Every query that shows
    jobs or measurements to a caller has this condition. Scratch runs are not judged, so they are not among
    them; what shows both has the condition `visible`.
    """
    return sa.and_(Job.kind == BENCHMARK, visible(caller))


def visible(caller: Caller) -> sa.ColumnElement[bool]:
    """Which jobs the caller may read, scratch runs included; the same rule as `readable`."""
    if caller.jobs is not None:
        return sa.and_(Job.private.is_(False), Job.id.in_(caller.jobs))
    if caller.may("admin"):
        return sa.true()
    return sa.or_(Job.private.is_(False), Job.user_name == caller.name)


def may_read(caller: Caller, job: Job) -> bool:
    """Whether the caller may read a job; the same rule as `readable`, for a row."""
    if caller.jobs is not None:
        return not job.private and job.id in caller.jobs
    return not job.private or caller.owns(job.user_name)


def find(session: Session, caller: Caller, job_id: str, *, any_kind: bool = False) -> Job:
    """The job whose id is, or begins with, `job_id`, if the caller may read it.

    Args:
        any_kind: whether it may be a scratch run, which has no results.

    Raises:
        NotFound: there is no such job, or it is private to another user.
        InvalidInput: the ids of several jobs that the caller may read begin so.
    """
    query = sa.select(Job).where(visible(caller))
    found = ids.find(session, query, Job.id, job_id, ID, "jobs")
    if found is None:
        raise NotFound(
            f"there is no job {brief(job_id)}, or it is private to another user", field="id"
        )
    job: Job = found[0]
    if job.kind != BENCHMARK and not any_kind:
        raise NotFound(
            f"the job {job.id} is a scratch run, which is not judged: it has no results", field="id"
        )
    return job


def find_own(session: Session, caller: Caller, job_id: str, *, any_kind: bool = False) -> Job:
    """The job of an id, if the caller may change it.

    Args:
        any_kind: as in `find`.

    Raises:
        NotFound: as `find`.
        Forbidden: it belongs to another user, and the caller is no administrator.
    """
    job = find(session, caller, job_id, any_kind=any_kind)
    if not caller.owns(job.user_name):
        raise Forbidden(
            f"only {job.user_name} and administrators may change the job {job.id}", field="id"
        )
    return job


def listed(session: Session, caller: Caller, wanted: Filter) -> Sequence[Job]:
    """Jobs that the caller may read, in the order asked for, and one more than `limit` if there are
    more.

    Raises:
        NotFound: there is no job `before`, or it is private to another user.
    """
    by = search.SORTS[wanted.sort.removeprefix("-")]
    descends = wanted.sort.startswith("-")
    query = sa.select(Job).where(visible(caller)).limit(wanted.limit + 1)
    if wanted.kind is not None:
        query = query.where(Job.kind == wanted.kind)
    query = query.order_by(by.desc() if descends else by, Job.number.desc())
    query = query.where(*search.has_words(wanted.words))
    query = query.where(*search.submitted_within(wanted.since, wanted.until))
    if wanted.found is not None:
        query = query.where(search.has_found(wanted.found))
    if wanted.user is not None:
        query = query.where(Job.user_name == wanted.user)
    if wanted.state is not None:
        query = query.where(Job.state == wanted.state)
    if wanted.op is not None:
        query = query.where(Job.op == wanted.op)
    if wanted.tag is not None:
        query = query.join(JobTag, JobTag.job_number == Job.number).where(JobTag.tag == wanted.tag)
    if wanted.implementation is not None:
        # The column is a list as JSON. Names have no quotes, and a version follows after an @.
        name = json.dumps(wanted.implementation)[1:-1]
        query = query.where(
            sa.or_(
                Job.implementations.contains(f'"{name}"', autoescape=True),
                Job.implementations.contains(f'"{name}@', autoescape=True),
            )
        )
    if wanted.before is not None:
        number = find(session, caller, wanted.before, any_kind=True).number
        value = sa.select(by).where(Job.number == number).correlate(None).scalar_subquery()
        beyond = by < value if descends else by > value
        query = query.where(sa.or_(beyond, sa.and_(by == value, Job.number < number)))
    return session.scalars(query).all()


def cancel(session: Session, job: Job) -> None:
    """End a job: at once if it waits, soon if it runs. A job that has ended is not changed."""
    queue.lock(session)
    session.refresh(job)
    if job.state not in UNFINISHED:
        return
    job.cancel_ms = job.cancel_ms or now_ms()
    if job.state == "queued":
        lifecycle.end_job(session, job, "cancelled", "cancelled", "cancelled before it began")


def _uploads_of(
    session: Session, caller: Caller, request: JobRequest, checked: Checked, *, lock: bool = False
) -> tuple[StoredProblem | None, dict[str, UploadedVersion]]:
    """The problem that a job measures, None for an op of the library, and the uploads that it times.

    Raises:
        InvalidInput: one of them was deleted since the request was checked.
    """
    op, problem = without_version(request.op), None
    if problem_sha256 := checked.get("problem_sha256"):
        # The version whose cases were checked, even if another one is the latest now.
        reference = f"{op}@{problem_sha256}"
        problem = job_uploads.resolve_problem(session, caller, reference, lock=lock)
    return problem, job_uploads.resolve(session, caller, op, request.implementations, lock=lock)


def _is_private(
    request: JobRequest,
    problem: StoredProblem | None,
    uploads: Mapping[str, UploadedVersion],
    by_default: bool,
) -> bool:
    """Whether the job of a request is private.

    Tracebacks in its results quote the source of what it times, and its cases tell of its problem.
    So a job on a private problem or with a private upload is private unless the request says
    otherwise.
    """
    if request.private is not None:
        return request.private
    of_problem = problem is not None and problem.private
    return by_default or of_problem or any(upload.private for upload in uploads.values())


def _find_answered(
    session: Session, caller: Caller, request: JobRequest, checked: Checked, private: bool
) -> Job | None:
    """A finished job of the caller that measured the same in the same environment, or None.

    A job that others may read does not answer a private request, and a private one does not answer
    a request that is explicitly not private. A request for profiles, or for what compute-sanitizer
    says, is answered by a new job only.

    A partial job answers nothing, because a timeout, a crash or a lack of memory need not happen
    again. Who asks again for a known wrong result waits for its check once more.
    """
    if request.profile is not None or request.sanitize:
        return None
    query = sa.select(Job).where(
        Job.user_name == caller.name,
        Job.question_sha256 == _measured_sha256(request, checked),
        Job.state == "succeeded",
        Job.environment == checked["environment"],
    )
    if private or request.private is not None:
        query = query.where(Job.private.is_(private))
    if "nodes" in checked:
        query = query.where(Job.runner.in_(checked["nodes"]))
    return session.scalars(query.order_by(Job.number.desc()).limit(1)).one_or_none()


def _measured_sha256(request: JobRequest, checked: Checked) -> str:
    """Hash of what a job would measure if nothing changes until it runs."""
    return lifecycle.question_sha256(
        without_version(request.op),
        request.implementations,
        request.precision,
        [case["key"] for case in checked["cases"]],
        checked["kernels_sha256"],
        checked["sources"],
        checked.get("problem_sha256"),
        race=request.race,
    )


def sha256_of(request: JobRequest) -> str:
    """Hash of a request. A repeated Idempotency-Key must come with the same."""
    # Without these fields, the hash is that of a server which did not know them.
    unset = {name for name in OPTIONS if getattr(request, name) is None}
    unset |= {name for name in ("race", "sanitize") if not getattr(request, name)}
    if request.profile_options is None:
        unset.add("profile_options")
    shown = request.model_dump(mode="json", exclude=unset)
    return hashlib.sha256(_text(shown).encode()).hexdigest()


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
