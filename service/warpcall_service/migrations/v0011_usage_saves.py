"""Which of its counts of usage each server has saved last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "usage_saves",
        sa.Column("writer", sa.String(16), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("saved_ms", sa.BigInteger, nullable=False),
    )
