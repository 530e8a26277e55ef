"""What the measured cases of a job say, for lists of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("outcomes", sa.Text))
