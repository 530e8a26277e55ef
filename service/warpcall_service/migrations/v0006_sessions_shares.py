"""Sessions of browsers, private jobs, and share links.

Jobs that exist become private: until now only their users and administrators could read them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column(
            "key_id", sa.String(16), sa.ForeignKey("api_keys.id"), nullable=False, index=True
        ),
        sa.Column(
            "user_name", sa.String(64), sa.ForeignKey("users.name"), nullable=False, index=True
        ),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    # The default also applies to rows of an older server that still runs on this database.
    op.add_column(
        "jobs", sa.Column("private", sa.Boolean, nullable=False, server_default=sa.true())
    )
    op.create_table(
        "shares",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False, index=True),
        sa.Column(
            "job_number",
            sa.BigInteger,
            sa.ForeignKey("jobs.number"),
            nullable=False,
            index=True,
        ),
        sa.Column("other_number", sa.BigInteger, sa.ForeignKey("jobs.number")),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
    )
