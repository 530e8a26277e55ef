"""The tables of jobs: their cases, measurements and events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    text,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_bench.uploads.tables import StoredProblem
from warpcall_service.store.schema import CODE_LENGTH, NAME_LENGTH, Base

BENCHMARK = "benchmark"  # kinds of jobs
SCRATCH = "scratch"


class Job(Base):
    """A benchmark job, from its submission on. Only `jobs/expiry.py` deletes rows.

    Attributes:
        number: position in the order of submission.
        kind: "benchmark", or "scratch" for a scratch run, which has no implementations, cases and results.
        exit_status: of the command of a scratch run, as shells count it; null without one.
        request: the submission, as JSON.
        request_sha256: hash of the submission. A repeated Idempotency-Key must come with the same.
        question_sha256: hash of what is measured. Jobs with the same hash measure the same.
        priority: 0 is the highest priority.
        since_us: virtual time of the fair queue at the submission.
        cost_us: virtual time that the job costs its user.
        estimated_ms: estimated duration; `took_ms` is the duration of all attempts together.
        attempts: number of starts, without those that an orderly stop of a server interrupted.
        runner: id of the server that runs the job.
        fence: number of claims. A run may write only while this is the number of its own claim.
        ran_ms: heartbeat: the duration of the run so far, by the monotonic clock of its server.
        environment: class of machine and software, set when the first case is measured.
        sources: JSON of the SHA-256 of each implementation's source, by name. First it is what the
            submission found, then what the job's process has loaded.
        private: whether only its user and administrators may read it.
        gpu: model of the GPU that it asks for; null means any.
        node: id of the server, or host name of its machine, that it asks for; null means any.
        model: of the device of the latest attempt. From its first measured case on, the job runs
            only on devices of this model. It is null before the first attempt, and in old rows.
        problem_sha256: version of the problem that it measures; null for an op of the library.
        problem_number: row of that version, which is kept until the job ends; null afterwards.
        monitor: id of the monitor that repeats it; null for a job that a user submitted.
        name: what its user calls it in lists; null without a name, and in old rows.
        traceparent: names the request that submitted the job in its trace, as the header of this
            name does; null without a trace, and in old rows.
        device_ms, device_wait_ms, compile_ms, setup_ms: of all runs that have ended, as in `runner.Outcome`;
            null before the first end, and in old rows.
        outcomes: JSON of what its measured cases say so far; see `warpcall.jobs.outcomes.Tally`.
        device_bytes: the most device memory that measuring one of its cases may need; null in old rows,
            and of a scratch run: it neither passes another job nor lets one pass.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_user", "user_name", "number"),
        Index("ix_jobs_state", "state", "number"),
        Index("ix_jobs_pace", "op", "precision", "state", "number"),
        Index("ix_jobs_question", "user_name", "question_sha256"),
        Index("ix_jobs_monitor", "monitor", "number"),
        Index("ix_jobs_idempotency", "user_name", "idempotency_key", unique=True),
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    id: Mapped[str] = mapped_column(String(16), unique=True)
    kind: Mapped[str] = mapped_column(
        String(16), default=BENCHMARK, server_default=text("'benchmark'")
    )
    exit_status: Mapped[int | None]
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request: Mapped[str] = mapped_column(Text)
    request_sha256: Mapped[str] = mapped_column(String(64))
    question_sha256: Mapped[str] = mapped_column(String(64))
    op: Mapped[str] = mapped_column(String(CODE_LENGTH))
    implementations: Mapped[str] = mapped_column(Text)
    precision: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int]
    tags: Mapped[str] = mapped_column(Text)
    note: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    exit_class: Mapped[str | None] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(Text)
    cases_total: Mapped[int]
    cases_done: Mapped[int]
    attempts: Mapped[int]
    cancel_ms: Mapped[int | None] = mapped_column(BigInteger)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    started_ms: Mapped[int | None] = mapped_column(BigInteger)
    finished_ms: Mapped[int | None] = mapped_column(BigInteger)
    since_us: Mapped[int] = mapped_column(BigInteger)
    cost_us: Mapped[int] = mapped_column(BigInteger)
    nominal_ms: Mapped[int] = mapped_column(BigInteger)
    estimated_ms: Mapped[int] = mapped_column(BigInteger)
    took_ms: Mapped[int] = mapped_column(BigInteger)
    runner: Mapped[str | None] = mapped_column(String(255))
    fence: Mapped[int] = mapped_column(default=0, server_default="0")
    ran_ms: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    device: Mapped[str | None] = mapped_column(Text)
    environment: Mapped[str | None] = mapped_column(String(255))
    fingerprint: Mapped[str | None] = mapped_column(Text)
    sources: Mapped[str | None] = mapped_column(Text)
    private: Mapped[bool] = mapped_column(server_default=true())
    gpu: Mapped[str | None] = mapped_column(String(64))
    node: Mapped[str | None] = mapped_column(String(255))
    model: Mapped[str | None] = mapped_column(String(255))
    problem_sha256: Mapped[str | None] = mapped_column(String(64))
    problem_number: Mapped[int | None] = mapped_column(ForeignKey(StoredProblem.number), index=True)
    monitor: Mapped[str | None] = mapped_column(String(16))
    name: Mapped[str | None] = mapped_column(String(100))
    outcomes: Mapped[str | None] = mapped_column(Text)
    traceparent: Mapped[str | None] = mapped_column(String(55))
    device_ms: Mapped[int | None] = mapped_column(BigInteger)
    device_wait_ms: Mapped[int | None] = mapped_column(BigInteger)
    compile_ms: Mapped[int | None] = mapped_column(BigInteger)
    setup_ms: Mapped[int | None] = mapped_column(BigInteger)
    device_bytes: Mapped[int | None] = mapped_column(BigInteger)


class JobTag(Base):
    """A tag of a job, by which its owner can find it."""

    __tablename__ = "job_tags"
    __table_args__ = (Index("ix_job_tags_tag", "tag", "job_number"),)

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)


class JobCase(Base):
    """One case of a job. `result` is the sampler's whole result, as JSON compressed with zlib."""

    __tablename__ = "job_cases"

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[str] = mapped_column(Text)
    key: Mapped[str] = mapped_column(Text)
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    finished_ms: Mapped[int | None] = mapped_column(BigInteger)


class Measurement(Base):
    """The result of one implementation in one case, for lists and histories. It has no samples.

    Attributes:
        series_sha256: hash of op, implementation and case. Results with the same form one history.
        summary: all columns of the result except the samples, as JSON.
        source_sha256: hash of the source that was timed; null for the copy, and in old rows.
        problem_sha256: version of the problem; null for an op of the library.
        median_us, limit_us: times of the implementation and of the copy, for the spread between
            jobs; null where there is none, and in old rows.
    """

    __tablename__ = "measurements"
    __table_args__ = (
        Index("ix_measurements_series", "series_sha256", "job_number"),
        Index("ix_measurements_environment", "environment", "job_number"),
    )

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    series_sha256: Mapped[str] = mapped_column(String(64))
    environment: Mapped[str] = mapped_column(String(255))
    finished_ms: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    summary: Mapped[str] = mapped_column(Text)
    source_sha256: Mapped[str | None] = mapped_column(String(64))
    problem_sha256: Mapped[str | None] = mapped_column(String(64))
    median_us: Mapped[float | None] = mapped_column(Double)
    limit_us: Mapped[float | None] = mapped_column(Double)


class PrintedText(Base):
    """What an implementation printed in a case; `text` is UTF-8, compressed with zlib."""

    __tablename__ = "printed_texts"

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    text: Mapped[bytes] = mapped_column(LargeBinary)


class JobEvent(Base):
    """An event of a job. `sequence` counts from 1 in each job; `data` is JSON."""

    __tablename__ = "job_events"

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[str] = mapped_column(Text)


class JobClock(Base):
    """One row with the virtual time of the fair queue. Changes of the queue lock it first."""

    __tablename__ = "job_clock"

    id: Mapped[int] = mapped_column(primary_key=True)
    now_us: Mapped[int] = mapped_column(BigInteger)


class JobShare(Base):
    """The finish tag, in virtual time, of the last job of a user that was started."""

    __tablename__ = "job_shares"

    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    end_us: Mapped[int] = mapped_column(BigInteger)
