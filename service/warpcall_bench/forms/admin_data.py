"""What the page of administrators shows: users with their usage, keys, sessions and quotas."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from warpcall_bench.forms.quota_rows import LimitRow, QuotaRow, limit_rows, quota_rows
from warpcall_bench.jobs import queue
from warpcall_bench.summaries.quota_use import quota_use
from warpcall_bench.uploads import database as uploads
from warpcall_service.auth import sessions, usage, users
from warpcall_service.auth.tables import ApiKey, BrowserSession, User
from warpcall_service.auth.usage import Amount
from warpcall_service.quotas import Quotas
from warpcall_service.store.times import moment

DAYS = 30  # of usage, up to and including today (UTC)
DAY_S = 86_400
STRIP = 26  # height of the largest bar, in pixels
MOST_ROWS = 500  # of one table


@dataclass(slots=True)
class UserRow:
    """A user with what they have and what they have used lately.

    Attributes:
        state: "active" or "disabled"; empty for a name in the usage that is no user.
        mostly: the op that took most device time, or else most requests.
        bars: path of a bar for each day; a day is 1 wide, and the height is in pixels.
    """

    name: str
    state: str = ""
    keys: int = 0
    jobs: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    used: Amount = field(default_factory=Amount)
    mostly: str = ""
    bars: str = ""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key, without what is secret."""

    id: str
    user: str
    role: str
    state: str
    created: str
    expires: str | None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session of a browser, without what is secret."""

    id: str
    user: str
    key: str
    created: str
    used: str
    expires: str


@dataclass(frozen=True, slots=True)
class DayRow:
    """What a user has used on a day."""

    day: str
    user: str
    used: Amount


@dataclass(frozen=True, slots=True)
class Admin:
    """All that the page shows."""

    users: list[UserRow]
    keys: list[KeyRow]
    ended_keys: list[KeyRow]
    sessions: list[SessionRow]
    days: list[DayRow]
    quotas: list[QuotaRow]
    limits: list[LimitRow]


def read(session: Session, known: Quotas) -> Admin:
    """Everything about users, from the database.

    Args:
        known: the limits of users, and what this server knows of their use.
    """
    now = time.time()
    rows = {
        user.name: UserRow(user.name, "active" if user.disabled_at is None else "disabled", keys)
        for user, keys in users.list_users(session)
    }
    for name, number in queue.unfinished_by_user(session):
        rows.setdefault(name, UserRow(name)).jobs = number
    for name, number, size in uploads.stored_by_user(session):
        row = rows.setdefault(name, UserRow(name))
        row.uploads, row.upload_bytes = number, size
    days = _add_usage(session, rows, now)
    keys = [_key(key, owner, now) for key, owner in users.list_keys(session)]
    shown = sorted(rows.values(), key=lambda one: (not one.state, one.name))[:MOST_ROWS]
    use = quota_use(session, None)
    return Admin(
        users=shown,
        keys=[key for key in keys if key.state == "active"][:MOST_ROWS],
        ended_keys=[key for key in reversed(keys) if key.state != "active"][:MOST_ROWS],
        sessions=[session_row(row) for row in sessions.listed(session)][:MOST_ROWS],
        days=days[:MOST_ROWS],
        quotas=quota_rows(known, [one.name for one in shown], use),
        limits=limit_rows(known, users.stored_quotas(session), use)[:MOST_ROWS],
    )


def _add_usage(session: Session, rows: dict[str, UserRow], now: float) -> list[DayRow]:
    """Add the usage to the users, and return it by day and user, the latest day first."""
    names = [
        time.strftime("%Y-%m-%d", time.gmtime(now - (DAYS - 1 - i) * DAY_S)) for i in range(DAYS)
    ]
    days: dict[tuple[str, str], Amount] = defaultdict(Amount)
    ops: dict[str, dict[str, Amount]] = defaultdict(lambda: defaultdict(Amount))
    for day, user, used in usage.by_day_and_user(session, names[0]):
        days[day, user].add(used)
        rows.setdefault(user, UserRow(user)).used.add(used)
    for user, op, used in usage.by_user_and_op(session, names[0]):
        if op:
            ops[user][op].add(used)
    for user, known in ops.items():
        most_used = [(used.kernel_us, used.requests, op) for op, used in known.items()]
        rows[user].mostly = max(most_used)[2]
    most_us = max((used.kernel_us for used in days.values()), default=0.0)
    most = max((used.requests for used in days.values()), default=0)
    for row in rows.values():
        row.bars = "".join(
            _bar(i, days[name, row.name], most_us, most)
            for i, name in enumerate(names)
            if (name, row.name) in days
        )
    ordered = sorted(days.items(), key=lambda item: item[0][1])
    ordered.sort(key=lambda item: item[0][0], reverse=True)
    return [DayRow(day, user, used) for (day, user), used in ordered]


def _bar(position: int, used: Amount, most_us: float, most: int) -> str:
    share = used.kernel_us / most_us if most_us else used.requests / most
    height = round(max(1.5, STRIP * share), 1)
    return f"M{position} {STRIP + 1}v-{height:g}h.8v{height:g}z"


def _key(key: ApiKey, owner: User, now: float) -> KeyRow:
    state = "active"
    if key.revoked_at is not None:
        state = "revoked"
    elif key.expires_at is not None and key.expires_at <= now:
        state = "expired"
    elif owner.disabled_at is not None:
        state = "user disabled"
    expires = None if key.expires_at is None else moment(1000 * key.expires_at)
    return KeyRow(key.id, key.user_name, key.role, state, moment(1000 * key.created_at), expires)


def session_row(row: BrowserSession) -> SessionRow:
    """A session as pages show it."""
    times = (moment(1000 * at) for at in (row.created_at, row.used_at, row.expires_at))
    return SessionRow(row.id, row.user_name, row.key_id, *times)
