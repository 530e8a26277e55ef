"""Servers that an administrator drains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column(
        "nodes", sa.Column("drained", sa.Boolean, nullable=False, server_default=sa.false())
    )
