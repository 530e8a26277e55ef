"""Users and keys in the database, and the copy of keys, sessions and quotas that a server works with."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound
from warpcall_service.auth import api_keys
from warpcall_service.auth.api_keys import KeyRecord
from warpcall_service.auth.session_tokens import SessionRecord
from warpcall_service.auth.tables import (
    ApiKey,
    BrowserSession,
    Change,
    StoredLimit,
    Usage,
    User,
)
from warpcall_service.identity import LOCAL, ROLES, Caller, Kind, Role
from warpcall_service.quotas import Stored
from warpcall_service.store.schema import NAME_LENGTH

NAME = re.compile(r"[a-z0-9][a-z0-9._@-]*")
RESERVED = (LOCAL.name, "all")  # "all" stands for all users where a user can be named


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys at change `number`, by their public part, all sessions by their ids, and all quotas."""

    number: int = -1
    keys: dict[bytes, KeyRecord] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    quotas: Stored = field(default_factory=dict)

    def roles(self, now: float) -> tuple[dict[str, Role], float]:
        """The role with the most rights of each user who has a valid key at `now`, and the time at
        which the next key expires."""
        found: dict[str, Role] = {}
        until = math.inf
        for record in self.keys.values():
            if record.refusal(now):
                continue
            until = min(until, record.expires_at or math.inf)
            caller = record.caller
            if caller.name not in found or caller.may(found[caller.name]):
                found[caller.name] = caller.role
        return found, until


def snapshot(session: Session, known: Snapshot) -> Snapshot:
    """The current keys, sessions and quotas; `known` itself if nothing has changed since it was read."""
    number = session.scalars(sa.select(Change.number)).one()
    if number == known.number:
        return known
    found = {}
    for key, disabled_at in session.execute(
        sa.select(ApiKey, User.disabled_at).join(User, User.name == ApiKey.user_name)
    ):
        withdrawn = "was revoked" if key.revoked_at is not None else ""
        if disabled_at is not None:
            withdrawn = f"is of the user {key.user_name}, who is disabled"
        found[key.id.encode()] = KeyRecord(
            Caller(key.user_name, key.role, key.id), key.salt, key.digest, key.expires_at, withdrawn
        )
    opened = {
        row.id: SessionRecord(row.id, row.key_id, row.digest, row.expires_at, row.used_at)
        for row in session.scalars(sa.select(BrowserSession))
    }
    return Snapshot(number, found, opened, stored_quotas(session))


def add_user(session: Session, name: str) -> User:
    """Add a user.

    Raises:
        InvalidInput: the name is not allowed, or it is taken.
    """
    if not NAME.fullmatch(name) or len(name) > NAME_LENGTH:
        raise InvalidInput(
            f"a user's name must have 1 to {NAME_LENGTH} of a-z 0-9 . _ @ - and begin with a "
            f"letter or digit, got {name!r:.100}",
            field="name",
        )
    if name in RESERVED or session.get(User, name) is not None:
        raise InvalidInput(f"there is a user {name} already", field="name")
    user = User(name=name, created_at=_now())
    session.add(user)
    count_change(session)
    return user


def disable_user(session: Session, name: str, *, disabled: bool = True) -> None:
    """Disable all keys of a user, or with `disabled=False` enable them again.

    Their sessions end for ever.

    Raises:
        NotFound: no such user.
    """
    count_change(session)
    user = find_user(session, name)
    user.disabled_at = (user.disabled_at or _now()) if disabled else None
    if disabled:
        session.execute(sa.delete(BrowserSession).where(BrowserSession.user_name == name))


def list_users(session: Session) -> Sequence[tuple[User, int]]:
    """Every user, and the number of their valid keys."""
    now = _now()
    valid = sa.and_(
        ApiKey.revoked_at.is_(None), sa.or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    )
    rows = session.execute(
        sa.select(User, sa.func.count(ApiKey.id))
        .outerjoin(ApiKey, sa.and_(ApiKey.user_name == User.name, valid))
        .group_by(User.name, User.created_at, User.disabled_at)
        .order_by(User.name)
    )
    return [(user, number) for user, number in rows]


def create_key(
    session: Session, user_name: str, role: Role = "call", lifetime_s: int | None = None
) -> tuple[ApiKey, str]:
    """Create a key. Its text is returned once and not stored.

    Raises:
        NotFound: no such user.
        InvalidInput: the user is disabled, or there is no such role.
    """
    if role not in ROLES:
        raise InvalidInput(f"the role must be {', '.join(ROLES)}, got {role!r:.60}", field="role")
    if find_user(session, user_name).disabled_at is not None:
        raise InvalidInput(f"the user {user_name} is disabled", field="user")
    salt = secrets.token_bytes(api_keys.SALT_BYTES)
    key_id, text = api_keys.new_key()
    while session.get(ApiKey, key_id) is not None:
        key_id, text = api_keys.new_key()
    now = _now()
    key = ApiKey(
        id=key_id,
        user_name=user_name,
        role=role,
        salt=salt,
        digest=api_keys.digest_of(text.encode(), salt),
        created_at=now,
        expires_at=None if lifetime_s is None else now + lifetime_s,
    )
    session.add(key)
    count_change(session)
    return key, text


def revoke_key(session: Session, key_id: str) -> ApiKey:
    """Revoke a key, and end its sessions. Idempotent.

    `key_id` may also be the whole key, which contains its id.

    Raises:
        NotFound: no such key.
    """
    count_change(session)
    key_id = key_id.removeprefix("wc_").partition("_")[0]
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound(f"there is no key {key_id!r:.20}", field="key")
    key.revoked_at = key.revoked_at or _now()
    session.execute(sa.delete(BrowserSession).where(BrowserSession.key_id == key_id))
    return key


def list_keys(session: Session, user_name: str | None = None) -> Sequence[tuple[ApiKey, User]]:
    """All keys, or those of one user, oldest first.

    Raises:
        NotFound: no such user.
    """
    wanted = sa.select(ApiKey, User).join(User, User.name == ApiKey.user_name)
    if user_name is not None:
        find_user(session, user_name)
        wanted = wanted.where(ApiKey.user_name == user_name)
    rows = session.execute(wanted.order_by(ApiKey.created_at, ApiKey.id))
    return [(key, user) for key, user in rows]


def usage(session: Session, first_day: str, user_name: str | None = None) -> Sequence[Usage]:
    """The usage since a day, by day, user and op."""
    wanted = sa.select(Usage).where(Usage.day >= first_day)
    if user_name is not None:
        wanted = wanted.where(Usage.user_name == user_name)
    return session.scalars(wanted.order_by(Usage.day, Usage.user_name, Usage.op)).all()


def find_user(session: Session, name: str) -> User:
    """The user of this name.

    Raises:
        NotFound: no such user.
    """
    user = session.get(User, name)
    if user is None:
        raise NotFound(f"there is no user {name!r:.60}; `users add` adds one", field="user")
    return user


def count_change(session: Session) -> None:
    """Have every server on this database read keys, sessions and quotas again.

    This locks the row of the counter until the transaction ends. A transaction that ends sessions
    does it first: otherwise a log-in at the same time could add one that is not ended.
    """
    session.execute(sa.update(Change).values(number=Change.number + 1))


def stored_quotas(session: Session) -> Stored:
    """All quotas of users and roles, also those that this server does not know."""
    found: defaultdict[tuple[Kind, str], dict[str, float]] = defaultdict(dict)
    for row in session.scalars(sa.select(StoredLimit)):
        found[row.kind, row.subject][row.name] = row.value
    return dict(found)


def _now() -> int:
    return int(time.time())


def lock_user(session: Session, name: str) -> User | None:
    """Let one transaction at a time store what counts against a quota of this user.

    Otherwise two transactions that begin at the same moment would both count the same rows, and add
    theirs beyond the quota.

    Returns:
        The user; None if there is no row, as for the only user of a server without keys. The
        transaction then locks a row that administrators change, and holds for a short time.
    """
    user = session.get(User, name, with_for_update={"key_share": True})
    if user is None:
        session.get(Change, 1, with_for_update={"key_share": True})
    return user
