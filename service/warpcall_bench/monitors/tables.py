"""The tables of monitors. Each change here needs a file in migrations/."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_service.store.schema import CODE_LENGTH, NAME_LENGTH, Base

NUMBER = BigInteger().with_variant(Integer, "sqlite")


class Monitor(Base):
    """A measurement that is repeated. The row is deleted when the monitor is removed.

    Attributes:
        request: the job to repeat, as JSON.
        private: whether only its user and administrators may read it.
        least: the smallest step to report, as a share of the level.
        notify: URL that is called for each step; null if none is.
        secret: with which these calls are signed. It must be stored as it is, to sign with it.
        detail: why the last run failed; empty if it did not.
        failing_ms: when the first one of the runs failed that have failed since; null if the last
            run did not fail.
        next_ms: when the next run is due. While the server cannot take its job, when it was refused
            first.
        lease_ms: until when a server that claimed the run has time to submit it, or when a refused
            run is tried again; 0 before the first claim of a run.
        fence: number of claims. A server may submit a run only while this is its own claim's.
        job_number: the job of the latest run, until its results were searched for steps.
        runs: number of jobs that were submitted.
    """

    __tablename__ = "monitors"
    __table_args__ = (Index("ix_monitors_user", "user_name", "number"),)

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    id: Mapped[str] = mapped_column(String(16), unique=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    op: Mapped[str] = mapped_column(String(CODE_LENGTH))
    request: Mapped[str] = mapped_column(Text)
    private: Mapped[bool]
    every_s: Mapped[int] = mapped_column(BigInteger)
    least: Mapped[float] = mapped_column(Double)
    notify: Mapped[str | None] = mapped_column(Text)
    secret: Mapped[str | None] = mapped_column(String(64))
    paused: Mapped[bool]
    detail: Mapped[str] = mapped_column(Text)
    failing_ms: Mapped[int | None] = mapped_column(BigInteger)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    next_ms: Mapped[int] = mapped_column(BigInteger, index=True)
    lease_ms: Mapped[int] = mapped_column(BigInteger)
    fence: Mapped[int]
    job_number: Mapped[int | None] = mapped_column(BigInteger)
    runs: Mapped[int]


class MonitorStep(Base):
    """A step in the history of one implementation in one case of a monitor.

    Attributes:
        model: of the device. Times on other models form other histories.
        job_number: the first job at the new level.
        found_number: the job after which the step was found.
        before_us, after_us: the levels.
        noise: standard deviation of a run at one level, as a log ratio.
        changed: what else changed with the step, as a JSON list of names.
    """

    __tablename__ = "monitor_steps"

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    monitor_number: Mapped[int] = mapped_column(ForeignKey(Monitor.number), index=True)
    case_key: Mapped[str] = mapped_column(Text)
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH))
    model: Mapped[str] = mapped_column(String(255))
    job_number: Mapped[int] = mapped_column(BigInteger)
    found_number: Mapped[int] = mapped_column(BigInteger)
    before_us: Mapped[float] = mapped_column(Double)
    after_us: Mapped[float] = mapped_column(Double)
    noise: Mapped[float] = mapped_column(Double)
    changed: Mapped[str] = mapped_column(Text)
    found_ms: Mapped[int] = mapped_column(BigInteger)


class MonitorDelivery(Base):
    """A call of a monitor's URL: for all steps that one run showed, or for a run that failed.

    Attributes:
        id: the same in each attempt, so that a receiver knows a repeated one.
        event: `steps`, `failing` or `recovered`.
        body: the JSON that is sent, the same bytes in each attempt.
        state: `waiting`, `sending`, `delivered` or `failed`.
        attempts: number of attempts that began.
        next_ms: when the next attempt is due. While one is under way, when another server may
            begin the next one, because the server that made it is gone.
        status: status of the last answer; null if there was none.
        detail: why the last attempt failed; empty if it did not.
    """

    __tablename__ = "monitor_deliveries"
    __table_args__ = (Index("ix_monitor_deliveries_due", "state", "next_ms"),)

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    monitor_number: Mapped[int] = mapped_column(ForeignKey(Monitor.number), index=True)
    event: Mapped[str] = mapped_column(String(16), server_default="steps")
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int]
    next_ms: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[int | None]
    detail: Mapped[str] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    finished_ms: Mapped[int | None] = mapped_column(BigInteger)
