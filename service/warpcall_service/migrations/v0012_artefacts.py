"""The files of jobs: which server has each, and until when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "artefacts",
        sa.Column("job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer),
        sa.Column("implementation", sa.String(160), nullable=False),
        sa.Column("media_type", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("node", sa.String(16), nullable=False),
        sa.Column("file", sa.String(32), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_artefacts_user", "artefacts", ["user_name", "nbytes"])
    op.create_index("ix_artefacts_file", "artefacts", ["file"])
    op.create_index("ix_artefacts_expires", "artefacts", ["expires_ms"])
