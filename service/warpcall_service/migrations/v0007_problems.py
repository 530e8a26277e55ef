"""Problems that users upload, and the problem that each job measures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "problems",
        sa.Column("number", number, primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("function", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.Integer, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        sa.Column("outline", sa.Text, nullable=False),
        # The last ones, since SQLite reads over a long value to find those after it.
        sa.Column("declaration", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_index("ix_problems_version", "problems", ["user_name", "name", "sha256"], unique=True)
    op.create_index("ix_problems_latest", "problems", ["latest_ms", "number"])
    op.add_column("jobs", sa.Column("problem_sha256", sa.String(64)))
    # SQLite can add a foreign key only with the column.
    needed = sa.Column("problem_number", sa.BigInteger, sa.ForeignKey("problems.number"))
    op.add_column("jobs", needed, inline_references=True)
    op.create_index("ix_jobs_problem_number", "jobs", ["problem_number"])
    op.add_column("measurements", sa.Column("problem_sha256", sa.String(64)))
