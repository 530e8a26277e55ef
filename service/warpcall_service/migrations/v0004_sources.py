"""The source of what was timed, times for the comparison of jobs, and longer names.

Names of uploaded implementations and problems begin with their user's name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

LONGER = (("jobs", "op"), ("measurements", "implementation"), ("usage", "op"))


def upgrade() -> None:
    op.add_column("jobs", sa.Column("sources", sa.Text))
    op.add_column("measurements", sa.Column("source_sha256", sa.String(64)))
    op.add_column("measurements", sa.Column("median_us", sa.Double))
    op.add_column("measurements", sa.Column("limit_us", sa.Double))
    op.create_index("ix_measurements_environment", "measurements", ["environment", "job_number"])
    if op.get_bind().dialect.name != "sqlite":  # SQLite ignores the length of texts
        for table, column in LONGER:
            op.alter_column(table, column, type_=sa.String(160), existing_nullable=False)
