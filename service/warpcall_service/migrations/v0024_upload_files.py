"""Uploads of several files: the files of each user, and which of them belong to a version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("implementations", sa.Column("entry", sa.String(200)))
    op.add_column(
        "implementations",
        sa.Column("files_nbytes", sa.Integer, nullable=False, server_default="0"),
    )
    op.create_table(
        "upload_files",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.Integer, nullable=False),
        sa.Column("used_ms", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_upload_files_sha256", "upload_files", ["user_name", "sha256"], unique=True)
    op.create_index("ix_upload_files_used_ms", "upload_files", ["used_ms"])
    op.create_table(
        "implementation_files",
        sa.Column(
            "upload_number",
            sa.BigInteger,
            sa.ForeignKey("implementations.number", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("path", sa.String(200), primary_key=True),
        sa.Column(
            "file_number", sa.BigInteger, sa.ForeignKey("upload_files.number"), nullable=False
        ),
    )
    op.create_index("ix_implementation_files_file_number", "implementation_files", ["file_number"])
