"""The tables of the server's database. Each change here needs a file in migrations/.

Times are whole seconds since 1970 (`_at`), or milliseconds (`_ms`), so that both databases keep and
compare them alike.
"""

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
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from warpcall_service.identity import Role

NAME_LENGTH = 64
CODE_LENGTH = 160  # of the name of an op or an implementation, which may begin with a user's name


class Base(DeclarativeBase):
    """Base class of all tables."""


class User(Base):
    """A user. Rows are never deleted, so that their usage keeps its meaning."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    disabled_at: Mapped[int | None] = mapped_column(BigInteger)


class ApiKey(Base):
    """An API key: its hash, which recognizes the key but cannot be used as one. Never deleted."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_name: Mapped[str] = mapped_column(ForeignKey("users.name"), index=True)
    role: Mapped[Role] = mapped_column(String(16))
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)


class BrowserSession(Base):
    """A session: a browser that logged in with a key. The row is deleted when the session ends.

    Attributes:
        digest: SHA-256 of the token, which has 256 random bits and is only in the browser's cookie.
        key_id: the key that it was opened with. The session has the role of this key.
        used_at: when it was used last, to within ten minutes.
    """

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    user_name: Mapped[str] = mapped_column(ForeignKey("users.name"), index=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger)


class Change(Base):
    """One row with a counter of changes to users, keys and sessions. Servers poll only this row."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)


class Usage(Base):
    """Usage of an op by a user on a day (UTC, YYYY-MM-DD). `op` is empty for other requests."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    op: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    bytes_in: Mapped[int] = mapped_column(BigInteger)
    bytes_out: Mapped[int] = mapped_column(BigInteger)
    kernel_us: Mapped[int] = mapped_column(BigInteger)


class Job(Base):
    """A benchmark job, from its submission on. Rows are never deleted.

    Attributes:
        number: position in the order of submission.
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
    problem_number: Mapped[int | None] = mapped_column(ForeignKey("problems.number"), index=True)
    monitor: Mapped[str | None] = mapped_column(String(16))


class JobTag(Base):
    """A tag of a job, by which its owner can find it."""

    __tablename__ = "job_tags"
    __table_args__ = (Index("ix_job_tags_tag", "tag", "job_number"),)

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)


class JobCase(Base):
    """One case of a job. `result` is the sampler's whole result, as JSON compressed with zlib."""

    __tablename__ = "job_cases"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
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

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
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


class JobEvent(Base):
    """An event of a job. `sequence` counts from 1 in each job; `data` is JSON."""

    __tablename__ = "job_events"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
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


class ShareLink(Base):
    """A share link, with which people without a key read one job or one comparison.

    The row is deleted when the link is revoked.

    Attributes:
        id: names the link in lists; it does not open it.
        digest: SHA-256 of the token, which has 256 random bits and is only in the link.
        user_name: the user who made it.
        other_number: the job that `job_number` is compared with; null for a link to one job.
        expires_at: null if the link does not expire.
    """

    __tablename__ = "shares"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), index=True)
    other_number: Mapped[int | None] = mapped_column(ForeignKey("jobs.number"))
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)


class Uploaded(Base):
    """The columns of all tables of uploaded source. A row is one version of a name.

    A row is deleted when its user has deleted the version and no unfinished job needs it.

    Attributes:
        function: name of the function in the source: the implementation's, or a problem's reference.
        sha256: the version.
        nbytes: size of the source in UTF-8.
        private: whether only its user and administrators may read and time it.
        doc: first line of the docstring, of the function or of a problem's module.
        created_ms: when it was uploaded first.
        latest_ms: when it was uploaded last. The version of a name with the highest is the latest.
        deleted_ms: when its user deleted it; nobody sees it from then on.
    """

    __abstract__ = True

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    function: Mapped[str] = mapped_column(String(NAME_LENGTH))
    sha256: Mapped[str] = mapped_column(String(64))
    nbytes: Mapped[int]
    private: Mapped[bool]
    doc: Mapped[str] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    latest_ms: Mapped[int] = mapped_column(BigInteger)
    deleted_ms: Mapped[int | None] = mapped_column(BigInteger)
    source: Mapped[str] = mapped_column(Text, deferred=True)


class UploadedVersion(Uploaded):
    """One version of an implementation that a user uploaded.

    Its `sha256` is `runs.messages.version_of` of op, function and source.

    Attributes:
        op: name of an op of the library, or of a problem without its version.
        odd_cases: what checks in the op's odd cases found, by kind of device ("gpu", "cpu"), as JSON
            of `runs.results.OddCasesModel`; null before the first one, and in old rows.
    """

    __tablename__ = "implementations"
    __table_args__ = (
        Index("ix_implementations_version", "user_name", "name", "sha256", unique=True),
        Index("ix_implementations_latest", "latest_ms", "number"),
    )

    op: Mapped[str] = mapped_column(String(CODE_LENGTH))
    odd_cases: Mapped[str | None] = mapped_column(Text)


class StoredProblem(Uploaded):
    """One version of a problem that a user uploaded.

    Its `sha256` is `runs.messages.problem_version` of the source.

    Attributes:
        outline: names of its inputs, parameters and sizes, as JSON.
        declaration: the op that it declares, as JSON of `Op.describe`.
    """

    __tablename__ = "problems"
    __table_args__ = (
        Index("ix_problems_version", "user_name", "name", "sha256", unique=True),
        Index("ix_problems_latest", "latest_ms", "number"),
    )

    outline: Mapped[str] = mapped_column(Text)
    declaration: Mapped[str] = mapped_column(Text, deferred=True)


class JobUpload(Base):
    """An uploaded version that an unfinished job needs. It is deleted when the job ends.

    Attributes:
        implementation: as the job has it among its implementations.
    """

    __tablename__ = "job_uploads"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    upload_number: Mapped[int] = mapped_column(ForeignKey("implementations.number"), index=True)
