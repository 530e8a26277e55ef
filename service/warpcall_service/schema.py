"""The tables of the server's database. A change here needs a file in revisions/, which makes it.

Times are whole seconds since 1970, so that both databases keep and compare them alike.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from warpcall_service.callers import Role

NAME_LENGTH = 64


class Base(DeclarativeBase):
    """All tables."""


class User(Base):
    """Someone who calls; never deleted, so that what he used stays told."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    disabled_at: Mapped[int | None] = mapped_column(BigInteger)


class ApiKey(Base):
    """A key as the server knows it: enough to recognise it, not enough to use it; never deleted."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_name: Mapped[str] = mapped_column(ForeignKey("users.name"), index=True)
    role: Mapped[Role] = mapped_column(String(16))
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)


class Change(Base):
    """One row, counted up by each change of users or keys: servers look at it, not at the tables."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)


class Usage(Base):
    """What a user did with an op on a day (UTC, as 2026-11-21); `op` is empty for all but calls."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    op: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    bytes_in: Mapped[int] = mapped_column(BigInteger)
    bytes_out: Mapped[int] = mapped_column(BigInteger)
    kernel_us: Mapped[int] = mapped_column(BigInteger)
