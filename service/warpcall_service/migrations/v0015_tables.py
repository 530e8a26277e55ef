"""All tables.

Databases that the files 0001 to 0015 of earlier versions made have these tables already.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _make_accounts()
    _make_uploads()
    _make_jobs()
    _make_nodes()
    _make_monitors()


def _make_accounts() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("disabled_at", sa.BigInteger),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column(
            "user_name", sa.String(64), sa.ForeignKey("users.name"), nullable=False, index=True
        ),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
    )
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
        sa.Column("op", sa.String(160), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("bytes_in", sa.BigInteger, nullable=False),
        sa.Column("bytes_out", sa.BigInteger, nullable=False),
        sa.Column("kernel_us", sa.BigInteger, nullable=False),
    )


def _make_uploads() -> None:
    op.create_table(
        "implementations",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("op", sa.String(160), nullable=False),
        sa.Column("function", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.Integer, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        # After the others, since SQLite reads over a long value to find those behind it.
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("odd_cases", sa.Text),
    )
    op.create_index(
        "ix_implementations_version",
        "implementations",
        ["user_name", "name", "sha256"],
        unique=True,
    )
    op.create_index("ix_implementations_latest", "implementations", ["latest_ms", "number"])
    op.create_table(
        "problems",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("function", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.Integer, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        sa.Column("outline", sa.Text, nullable=False),
        sa.Column("declaration", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_index("ix_problems_version", "problems", ["user_name", "name", "sha256"], unique=True)
    op.create_index("ix_problems_latest", "problems", ["latest_ms", "number"])


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(16), nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("question_sha256", sa.String(64), nullable=False),
        sa.Column("op", sa.String(160), nullable=False),
        sa.Column("implementations", sa.Text, nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("exit_class", sa.String(16)),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("cases_total", sa.Integer, nullable=False),
        sa.Column("cases_done", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("cancel_ms", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("finished_ms", sa.BigInteger),
        sa.Column("since_us", sa.BigInteger, nullable=False),
        sa.Column("cost_us", sa.BigInteger, nullable=False),
        sa.Column("nominal_ms", sa.BigInteger, nullable=False),
        sa.Column("estimated_ms", sa.BigInteger, nullable=False),
        sa.Column("took_ms", sa.BigInteger, nullable=False),
        sa.Column("runner", sa.String(255)),
        sa.Column("device", sa.Text),
        sa.Column("environment", sa.String(255)),
        sa.Column("fingerprint", sa.Text),
        sa.Column("fence", sa.Integer, nullable=False, server_default="0"),
        sa.Column("ran_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("sources", sa.Text),
        sa.Column("private", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("problem_sha256", sa.String(64)),
        sa.Column("problem_number", sa.BigInteger, sa.ForeignKey("problems.number"), index=True),
        sa.Column("gpu", sa.String(64)),
        sa.Column("node", sa.String(255)),
        sa.Column("model", sa.String(255)),
        sa.Column("monitor", sa.String(16)),
    )
    op.create_index("ix_jobs_user", "jobs", ["user_name", "number"])
    op.create_index("ix_jobs_state", "jobs", ["state", "number"])
    op.create_index("ix_jobs_pace", "jobs", ["op", "precision", "state", "number"])
    op.create_index("ix_jobs_question", "jobs", ["user_name", "question_sha256"])
    op.create_index("ix_jobs_idempotency", "jobs", ["user_name", "idempotency_key"], unique=True)
    op.create_index("ix_jobs_monitor", "jobs", ["monitor", "number"])

    def job() -> sa.Column[int]:
        return sa.Column(
            "job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), primary_key=True
        )

    op.create_table("job_tags", job(), sa.Column("tag", sa.String(64), primary_key=True))
    op.create_index("ix_job_tags_tag", "job_tags", ["tag", "job_number"])
    op.create_table(
        "job_cases",
        job(),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.create_table(
        "measurements",
        job(),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("implementation", sa.String(160), primary_key=True),
        sa.Column("series_sha256", sa.String(64), nullable=False),
        sa.Column("environment", sa.String(255), nullable=False),
        sa.Column("finished_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("source_sha256", sa.String(64)),
        sa.Column("median_us", sa.Double),
        sa.Column("limit_us", sa.Double),
        sa.Column("problem_sha256", sa.String(64)),
    )
    op.create_index("ix_measurements_series", "measurements", ["series_sha256", "job_number"])
    op.create_index("ix_measurements_environment", "measurements", ["environment", "job_number"])
    op.create_table(
        "job_events",
        job(),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    clock = op.create_table(
        "job_clock",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("now_us", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(clock, [{"id": 1, "now_us": 0}])
    op.create_table(
        "job_shares",
        sa.Column("user_name", sa.String(64), primary_key=True),
        sa.Column("end_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "job_uploads",
        job(),
        sa.Column("implementation", sa.String(160), primary_key=True),
        sa.Column(
            "upload_number",
            sa.BigInteger,
            sa.ForeignKey("implementations.number"),
            nullable=False,
            index=True,
        ),
    )
    op.create_table(
        "shares",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("user_name", sa.String(64), nullable=False, index=True),
        sa.Column(
            "job_number", sa.BigInteger, sa.ForeignKey("jobs.number"), nullable=False, index=True
        ),
        sa.Column("other_number", sa.BigInteger, sa.ForeignKey("jobs.number")),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
    )
    op.create_table(
        "artefacts",
        job(),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer),
        sa.Column("implementation", sa.String(160), nullable=False),
        sa.Column("media_type", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("node", sa.String(16), nullable=False),
        sa.Column("file", sa.String(32), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_artefacts_user", "artefacts", ["user_name", "nbytes"])
    op.create_index("ix_artefacts_file", "artefacts", ["file"])
    op.create_index("ix_artefacts_expires", "artefacts", ["expires_ms"])


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("beat_ms", sa.BigInteger, nullable=False),
        sa.Column("stopped_ms", sa.BigInteger),
        sa.Column("drained", sa.Boolean, nullable=False, server_default=sa.false()),
    )


def _make_monitors() -> None:
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
        sa.Column("next_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("lease_ms", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("job_number", sa.BigInteger),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("failing_ms", sa.BigInteger),
    )
    op.create_index("ix_monitors_user", "monitors", ["user_name", "number"])

    def monitor() -> sa.Column[int]:
        return sa.Column(
            "monitor_number", NUMBER, sa.ForeignKey("monitors.number"), nullable=False, index=True
        )

    op.create_table(
        "monitor_steps",
        sa.Column("number", NUMBER, primary_key=True),
        monitor(),
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
    op.create_table(
        "monitor_deliveries",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        monitor(),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("finished_ms", sa.BigInteger),
        sa.Column("event", sa.String(16), nullable=False, server_default="steps"),
    )
    op.create_index("ix_monitor_deliveries_due", "monitor_deliveries", ["state", "next_ms"])
