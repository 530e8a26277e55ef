"""The tables of the server's database. A change here needs a file in migrations/, which makes it.

Times are whole seconds since 1970 (`_at`), or milliseconds (`_ms`), so that both databases keep and
compare them alike.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from warpcall_service.identity import Role

NAME_LENGTH = 64


class Base(DeclarativeBase):
    """All tables."""


class User(Base):
    """Someone who calls; never deleted, so that what he used stays told."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    disabled_at: Mapped[int | None] = mapped_column(BigInteger)


class ApiKey(Base):
    """A key as the server knows it: enough to recognise it, not enough to use it; never deleted."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_name: Mapped[str] = mapped_column(ForeignKey("users.name"), index=True)
    role: Mapped[Role] = mapped_column(String(16))
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)


class Change(Base):
    """One row, counted up by each change of users or keys: servers look at it, not at the tables."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)


class Usage(Base):
    """What a user did with an op on a day (UTC, as 2026-11-21); `op` is empty for all but calls."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    op: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    bytes_in: Mapped[int] = mapped_column(BigInteger)
    bytes_out: Mapped[int] = mapped_column(BigInteger)
    kernel_us: Mapped[int] = mapped_column(BigInteger)


class Job(Base):
    """A benchmark job, from its submission on; never deleted.

    Attributes:
        number: in the order of submission.
        request: what was submitted, as JSON.
        request_sha256: of the request, so that a repeated Idempotency-Key is held to it.
        question_sha256: of what is measured: equal for jobs that one another's results answer.
        priority: 0 is served first.
        since_us: virtual time of the fair queue when it came; `cost_us` what it is charged.
        estimated_ms: what it was thought to take, `took_ms` what it took, of all attempts together.
        attempts: times that it was begun and not put back by a server that stopped in good order.
        runner: id of the server that runs it.
        fence: counted up by each claim; a run writes only while this is as it was at its claim.
        ran_ms: heartbeat of the run: how long it has lasted by its server's monotonic clock.
        environment: class of machine and software, set when the first case is measured.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_user", "user_name", "number"),
        Index("ix_jobs_state", "state", "number"),
        Index("ix_jobs_pace", "op", "precision", "state", "number"),
        Index("ix_jobs_question", "user_name", "question_sha256"),
        Index("ix_jobs_idempotency", "user_name", "idempotency_key", unique=True),
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    id: Mapped[str] = mapped_column(String(16), unique=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request: Mapped[str] = mapped_column(Text)
    request_sha256: Mapped[str] = mapped_column(String(64))
    question_sha256: Mapped[str] = mapped_column(String(64))
    op: Mapped[str] = mapped_column(String(NAME_LENGTH))
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


class JobTag(Base):
    """A word by which its owner finds a job again."""

    __tablename__ = "job_tags"
    __table_args__ = (Index("ix_job_tags_tag", "tag", "job_number"),)

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)


class JobCase(Base):
    """One case of a job; `result` is the sampler's whole answer, JSON in zlib, once it is measured."""

    __tablename__ = "job_cases"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[str] = mapped_column(Text)
    key: Mapped[str] = mapped_column(Text)
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    finished_ms: Mapped[int | None] = mapped_column(BigInteger)


class Measurement(Base):
    """What one implementation took in one case: what histories and lists read without the samples.

    Attributes:
        series_sha256: of op, implementation and case: the line of a history that it belongs to.
        summary: all columns of the result but the samples, as JSON.
    """

    __tablename__ = "measurements"
    __table_args__ = (Index("ix_measurements_series", "series_sha256", "job_number"),)

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    implementation: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    series_sha256: Mapped[str] = mapped_column(String(64))
    environment: Mapped[str] = mapped_column(String(255))
    finished_ms: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    summary: Mapped[str] = mapped_column(Text)


class JobEvent(Base):
    """Something that happened to a job; `sequence` counts from 1 in each job, `data` is JSON."""

    __tablename__ = "job_events"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[str] = mapped_column(Text)


class JobClock(Base):
    """One row: the virtual time of the fair queue. Who changes the queue's order locks it first."""

    __tablename__ = "job_clock"

    id: Mapped[int] = mapped_column(primary_key=True)
    now_us: Mapped[int] = mapped_column(BigInteger)


class JobShare(Base):
    """Where, in virtual time, what a user was served last ends."""

    __tablename__ = "job_shares"

    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    end_us: Mapped[int] = mapped_column(BigInteger)
