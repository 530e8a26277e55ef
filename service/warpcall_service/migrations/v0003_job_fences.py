"""A fence, so that only the newest claim of a job may write, and a heartbeat without a date.

The old column is dropped on purpose. A server of an older version would write without checking the
fence; without the column it cannot read jobs, and so writes nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("fence", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("ran_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.drop_column("jobs", "seen_ms")
