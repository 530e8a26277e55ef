"""The tables of groups: which jobs are the parts of one question."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_bench.jobs.tables import Job
from warpcall_service.store.schema import NAME_LENGTH, Base


class JobGroup(Base):
    """A group of jobs, which ask the same of several models.

    Attributes:
        request_sha256: hash of the submission. A repeated Idempotency-Key must come with the same.
    """

    __tablename__ = "job_groups"
    __table_args__ = (
        Index("ix_job_groups_idempotency", "user_name", "idempotency_key", unique=True),
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    id: Mapped[str] = mapped_column(String(16), unique=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str] = mapped_column(String(64))
    created_ms: Mapped[int] = mapped_column(BigInteger)


class GroupPart(Base):
    """A part of a group: a job that asks for the model `gpu`. A job may be a part of several groups,
    because a job that has measured the same before answers for a new one."""

    __tablename__ = "job_group_parts"

    group_number: Mapped[int] = mapped_column(ForeignKey(JobGroup.number), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), index=True)
    gpu: Mapped[str] = mapped_column(String(64))
