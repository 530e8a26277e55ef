"""Benchmark jobs: cases, measurements, events and the fair queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.String(16), nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("question_sha256", sa.String(64), nullable=False),
        sa.Column("op", sa.String(64), nullable=False),
        sa.Column("implementations", sa.Text, nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("exit_class", sa.String(16)),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("cases_total", sa.Integer, nullable=False),
        sa.Column("cases_done", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("cancel_ms", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("finished_ms", sa.BigInteger),
        sa.Column("since_us", sa.BigInteger, nullable=False),
        sa.Column("cost_us", sa.BigInteger, nullable=False),
        sa.Column("nominal_ms", sa.BigInteger, nullable=False),
        sa.Column("estimated_ms", sa.BigInteger, nullable=False),
        sa.Column("took_ms", sa.BigInteger, nullable=False),
        sa.Column("runner", sa.String(255)),
        sa.Column("seen_ms", sa.BigInteger),
        sa.Column("device", sa.Text),
        sa.Column("environment", sa.String(255)),
        sa.Column("fingerprint", sa.Text),
    )
    op.create_index("ix_jobs_user", "jobs", ["user_name", "number"])
    op.create_index("ix_jobs_state", "jobs", ["state", "number"])
    op.create_index("ix_jobs_pace", "jobs", ["op", "precision", "state", "number"])
    op.create_index("ix_jobs_question", "jobs", ["user_name", "question_sha256"])
    op.create_index("ix_jobs_idempotency", "jobs", ["user_name", "idempotency_key"], unique=True)

    def job() -> sa.Column[int]:
        return sa.Column(
            "job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True
        )

    op.create_table("job_tags", job(), sa.Column("tag", sa.String(64), primary_key=True))
    op.create_index("ix_job_tags_tag", "job_tags", ["tag", "job_number"])
    op.create_table(
        "job_cases",
        job(),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.create_table(
        "measurements",
        job(),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("implementation", sa.String(64), primary_key=True),
        sa.Column("series_sha256", sa.String(64), nullable=False),
        sa.Column("environment", sa.String(255), nullable=False),
        sa.Column("finished_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
    )
    op.create_index("ix_measurements_series", "measurements", ["series_sha256", "job_number"])
    op.create_table(
        "job_events",
        job(),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    clock = op.create_table(
        "job_clock",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("now_us", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(clock, [{"id": 1, "now_us": 0}])
    op.create_table(
        "job_shares",
        sa.Column("user_name", sa.String(64), primary_key=True),
        sa.Column("end_us", sa.BigInteger, nullable=False),
    )
