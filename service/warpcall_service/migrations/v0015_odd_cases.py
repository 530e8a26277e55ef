"""What checks of uploaded implementations in odd cases found, before they were timed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("implementations", sa.Column("odd_cases", sa.Text))
