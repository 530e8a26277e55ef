"""Users, API keys and usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("disabled_at", sa.BigInteger),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("user_name", sa.String(64), sa.ForeignKey("users.name"), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index("ix_api_keys_user_name", "api_keys", ["user_name"])
    changes = op.create_table(
        "changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(changes, [{"id": 1, "number": 0}])
    op.create_table(
        "usage",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("user_name", sa.String(64), primary_key=True),
        sa.Column("op", sa.String(64), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("bytes_in", sa.BigInteger, nullable=False),
        sa.Column("bytes_out", sa.BigInteger, nullable=False),
        sa.Column("kernel_us", sa.BigInteger, nullable=False),
    )
