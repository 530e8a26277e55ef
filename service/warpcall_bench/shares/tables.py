"""The table of share links."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_bench.jobs.tables import Job
from warpcall_service.store.schema import NAME_LENGTH, Base


class ShareLink(Base):
    """A share link, with which people without a key read one job or one comparison.

    The row is deleted when the link is revoked.

    Attributes:
        id: names the link in lists; it does not open it.
        digest: SHA-256 of the token, which has 256 random bits and is only in the link.
        user_name: the user who made it.
        other_number: the job that `job_number` is compared with; null for a link to one job.
        expires_at: null if the link does not expire.
    """

    __tablename__ = "shares"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    job_number: Mapped[int] = mapped_column(ForeignKey(Job.number), index=True)
    other_number: Mapped[int | None] = mapped_column(ForeignKey(Job.number))
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
