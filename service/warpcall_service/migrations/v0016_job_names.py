"""Names of jobs, which their users give them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("name", sa.String(100)))
