"""Groups: jobs that ask the same of several models of a GPU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "job_groups",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.String(16), nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "ix_job_groups_idempotency", "job_groups", ["user_name", "idempotency_key"], unique=True
    )
    op.create_table(
        "job_group_parts",
        sa.Column(
            "group_number", sa.BigInteger, sa.ForeignKey("job_groups.number"), primary_key=True
        ),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
    )
    op.create_index("ix_job_group_parts_job_number", "job_group_parts", ["job_number"])
