"""The device memory that a job may need, so that a short one can run beside what another one keeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("device_bytes", sa.BigInteger))
