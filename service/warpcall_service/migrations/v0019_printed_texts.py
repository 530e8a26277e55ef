"""What uploads print in the cases of a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "printed_texts",
        sa.Column("job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("implementation", sa.String(160), primary_key=True),
        sa.Column("text", sa.LargeBinary, nullable=False),
    )
