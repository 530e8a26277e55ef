"""Since when the runs of a monitor fail, and what a call of its URL is about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("monitors", sa.Column("failing_ms", sa.BigInteger))
    op.add_column(
        "monitor_deliveries",
        sa.Column("event", sa.String(16), nullable=False, server_default="steps"),
    )
