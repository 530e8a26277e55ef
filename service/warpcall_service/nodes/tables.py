"""The table of the servers that share a database. Each change here needs a file in migrations/."""

from __future__ import annotations

from sqlalchemy import BigInteger, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_service.store.schema import NODE_ID_LENGTH, Base

HOST_LENGTH = 255


class NodeRow(Base):
    """A server that shares the database. The row is deleted some time after the server has left.

    All times are milliseconds by the database's clock, so that the clocks of the servers do not
    matter.

    Attributes:
        id: as in the server's data folder; see `nodes/server_identity.py`.
        facts: versions, hash of the ops and lanes, as JSON.
        draining: whether it takes no more jobs: it is drained, or about to stop.
        drained: whether an administrator wants it to take no more jobs, until it is restarted.
        beat_ms: when it wrote its last heartbeat.
        stopped_ms: when it left in good order; null while it has not.
    """

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(String(NODE_ID_LENGTH), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(HOST_LENGTH))
    facts: Mapped[str] = mapped_column(Text)
    draining: Mapped[bool]
    drained: Mapped[bool] = mapped_column(default=False, server_default=false())
    started_ms: Mapped[int] = mapped_column(BigInteger)
    beat_ms: Mapped[int] = mapped_column(BigInteger)
    stopped_ms: Mapped[int | None] = mapped_column(BigInteger)
