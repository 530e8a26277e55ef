"""Scratch runs: the kind of a job, the exit status of its command, and the files that it needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("kind", sa.String(16), nullable=False, server_default=sa.text("'benchmark'")),
    )
    op.add_column("jobs", sa.Column("exit_status", sa.Integer))
    op.create_table(
        "job_files",
        sa.Column("job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True),
        sa.Column("path", sa.String(200), primary_key=True),
        sa.Column(
            "file_number", sa.BigInteger, sa.ForeignKey("upload_files.number"), nullable=False
        ),
    )
    op.create_index("ix_job_files_file_number", "job_files", ["file_number"])
