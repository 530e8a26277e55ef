"""Which uploads are verified, in which language they are, and their declared launches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("implementations", sa.Column("verified", sa.Text))
