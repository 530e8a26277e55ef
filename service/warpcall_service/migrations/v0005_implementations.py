"""Uploaded implementations, and the jobs that need them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "implementations",
        sa.Column("number", number, primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("op", sa.String(160), nullable=False),
        sa.Column("function", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.Integer, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        # The last one, since SQLite reads over a long value to find those after it.
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_index(
        "ix_implementations_version",
        "implementations",
        ["user_name", "name", "sha256"],
        unique=True,
    )
    op.create_index("ix_implementations_latest", "implementations", ["latest_ms", "number"])
    op.create_table(
        "job_uploads",
        sa.Column("job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True),
        sa.Column("implementation", sa.String(160), primary_key=True),
        sa.Column(
            "upload_number",
            sa.BigInteger,
            sa.ForeignKey("implementations.number"),
            nullable=False,
            index=True,
        ),
    )
