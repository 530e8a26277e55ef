"""Which devices a job may run on, and the model of the device that it runs on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("gpu", sa.String(64)))
    op.add_column("jobs", sa.Column("node", sa.String(255)))
    op.add_column("jobs", sa.Column("model", sa.String(255)))
