"""Monitors: measurements that are repeated, steps in their history, and calls of their URLs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("monitor", sa.String(16)))
    op.create_index("ix_jobs_monitor", "jobs", ["monitor", "number"])
    op.create_table(
        "monitors",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(16), nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("op", sa.String(160), nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("every_s", sa.BigInteger, nullable=False),
        sa.Column("least", sa.Double, nullable=False),
        sa.Column("notify", sa.Text),
        sa.Column("secret", sa.String(64)),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("next_ms", sa.BigInteger, nullable=False),
        sa.Column("lease_ms", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("job_number", sa.BigInteger),
        sa.Column("runs", sa.Integer, nullable=False),
    )
    op.create_index("ix_monitors_user", "monitors", ["user_name", "number"])
    op.create_index("ix_monitors_next_ms", "monitors", ["next_ms"])
    op.create_table(
        "monitor_steps",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("monitor_number", NUMBER, sa.ForeignKey("monitors.number"), nullable=False),
        sa.Column("case_key", sa.Text, nullable=False),
        sa.Column("implementation", sa.String(160), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("found_number", sa.BigInteger, nullable=False),
        sa.Column("before_us", sa.Double, nullable=False),
        sa.Column("after_us", sa.Double, nullable=False),
        sa.Column("noise", sa.Double, nullable=False),
        sa.Column("changed", sa.Text, nullable=False),
        sa.Column("found_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_monitor_steps_monitor_number", "monitor_steps", ["monitor_number"])
    op.create_table(
        "monitor_deliveries",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("monitor_number", NUMBER, sa.ForeignKey("monitors.number"), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.create_index(
        "ix_monitor_deliveries_monitor_number", "monitor_deliveries", ["monitor_number"]
    )
    op.create_index("ix_monitor_deliveries_due", "monitor_deliveries", ["state", "next_ms"])
