"""The requests that submitted jobs, in traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(55)))
