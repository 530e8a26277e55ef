"""Which claim of a job may write, and a heartbeat that is no time of day.

The old column goes: a server of an older version, which would write without being asked whether the
job is still its own, cannot read jobs any more and so writes nothing.
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
