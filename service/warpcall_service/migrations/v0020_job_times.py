"""Where the time of the runs of a job went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    for name in ("device_ms", "device_wait_ms", "compile_ms"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger))
