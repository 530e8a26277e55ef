"""The table of artefacts. Each change here needs a file in migrations/."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_bench.jobs.tables import Job
from warpcall_service.store.schema import CODE_LENGTH, NAME_LENGTH, NODE_ID_LENGTH, Base

FILE_LENGTH = 32


class ArtefactRow(Base):
    """A file that belongs to a job, or the reason why it could not be stored.

    Attributes:
        user_name: the user of the job, whose quota it counts against.
        kind: what it is, such as "torch-profile".
        position: of the case that it is about; null if it is about the whole job.
        implementation: that it is about; empty if it is about all.
        node: id of the server that has the file.
        file: name of the file in the server's folder of artefacts; empty if there is an error.
        error: why there is no file; empty if there is one.
    """

    __tablename__ = "artefacts"
    __table_args__ = (
        Index("ix_artefacts_user", "user_name", "nbytes"),
        Index("ix_artefacts_file", "file"),
        Index("ix_artefacts_expires", "expires_ms"),
    )

    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(32))
    position: Mapped[int | None]
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH))
    media_type: Mapped[str] = mapped_column(String(64))
    nbytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    node: Mapped[str] = mapped_column(String(NODE_ID_LENGTH))
    file: Mapped[str] = mapped_column(String(FILE_LENGTH))
    error: Mapped[str] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    expires_ms: Mapped[int] = mapped_column(BigInteger)
