"""The tables of users, their keys, sessions and quotas, and what they have used."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_service.identity import Kind, Role
from warpcall_service.store.schema import CODE_LENGTH, NAME_LENGTH, Base


class User(Base):
    """A user. Rows are never deleted, so that their usage keeps its meaning."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    disabled_at: Mapped[int | None] = mapped_column(BigInteger)


class ApiKey(Base):
    """An API key: its hash, which recognizes the key but cannot be used as one. Never deleted."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_name: Mapped[str] = mapped_column(ForeignKey(User.name), index=True)
    role: Mapped[Role] = mapped_column(String(16))
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)


class BrowserSession(Base):
    """A session: a browser that logged in with a key. The row is deleted when the session ends.

    Attributes:
        digest: SHA-256 of the token, which has 256 random bits and is only in the browser's cookie.
        key_id: the key that it was opened with. The session has the role of this key.
        used_at: when it was used last, to within ten minutes.
    """

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[str] = mapped_column(ForeignKey(ApiKey.id), index=True)
    user_name: Mapped[str] = mapped_column(ForeignKey(User.name), index=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger)


class Change(Base):
    """One row with a counter of changes to users, keys, sessions and quotas. Servers poll only this
    row."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)


class Usage(Base):
    """Usage of an op by a user on a day (UTC, YYYY-MM-DD). `op` is empty for other requests."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    op: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    bytes_in: Mapped[int] = mapped_column(BigInteger)
    bytes_out: Mapped[int] = mapped_column(BigInteger)
    kernel_us: Mapped[int] = mapped_column(BigInteger)


class StoredLimit(Base):
    """A limit that an administrator gave to a user or a role. See `quotas.py`.

    Attributes:
        kind: "user" or "role".
        subject: name of the user, or the role.
        name: of the quota, which is that of a setting. A server ignores those that it does not know.
    """

    __tablename__ = "quotas"

    kind: Mapped[Kind] = mapped_column(String(8), primary_key=True)
    subject: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    value: Mapped[float] = mapped_column(Double)
    changed_at: Mapped[int] = mapped_column(BigInteger)
