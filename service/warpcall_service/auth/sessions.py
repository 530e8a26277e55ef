"""Sessions of browsers in the database. Every function takes a session of it and blocks.

`Session` is a session of the database here, and `BrowserSession` a session of a browser.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import NotFound, Unauthorized
from warpcall_service.auth import session_tokens, users
from warpcall_service.auth.tables import ApiKey, BrowserSession, User
from warpcall_service.identity import Caller

MAX_SESSIONS = 16  # of one user; a further log-in ends the one that was used longest ago


def create(session: Session, caller: Caller, lifetime_s: float, replaced_id: str = "") -> str:
    """Create a session for a caller who came with a key, and return its token.

    Args:
        lifetime_s: seconds until the session expires, unless its key expires before.
        replaced_id: a session that the browser had until now; it ends.

    Raises:
        Unauthorized: the key was revoked, or its user disabled, at the same time.
    """
    users.count_change(session)
    now = int(time.time())
    key = session.get(ApiKey, caller.key_id)
    user = session.get(User, caller.name)
    if key is None or key.revoked_at is not None or user is None or user.disabled_at is not None:
        raise Unauthorized(f"the API key wc_{caller.key_id} is no longer valid")
    expires_at = now + max(1, round(lifetime_s))
    session.execute(
        sa.delete(BrowserSession).where(
            sa.or_(BrowserSession.expires_at <= now, BrowserSession.id == replaced_id)
        )
    )
    others = session.scalars(
        sa.select(BrowserSession.id)
        .where(BrowserSession.user_name == caller.name)
        .order_by(BrowserSession.used_at.desc(), BrowserSession.created_at.desc())
        .offset(MAX_SESSIONS - 1)
    ).all()
    session.execute(sa.delete(BrowserSession).where(BrowserSession.id.in_(others)))
    session_id, token = session_tokens.new_token()
    session.add(
        BrowserSession(
            id=session_id,
            digest=session_tokens.digest_of(token.encode()),
            key_id=key.id,
            user_name=caller.name,
            created_at=now,
            used_at=now,
            expires_at=expires_at if key.expires_at is None else min(expires_at, key.expires_at),
        )
    )
    return token


def end(session: Session, session_id: str) -> str:
    """End a session, and return the name of its user.

    Raises:
        NotFound: there is no such session.
    """
    found = session.get(BrowserSession, session_id)
    if found is None:
        raise NotFound(f"there is no session {session_id!r:.20}", field="session")
    users.count_change(session)
    session.delete(found)
    return found.user_name


def end_if_open(session: Session, session_id: str) -> None:
    """End a session, unless it has ended already."""
    with contextlib.suppress(NotFound):
        end(session, session_id)


def end_all(session: Session, user_name: str) -> int:
    """End all sessions of a user, and return their number."""
    users.count_change(session)
    ended = session.scalars(
        sa.delete(BrowserSession)
        .where(BrowserSession.user_name == user_name)
        .returning(BrowserSession.id)
    ).all()
    return len(ended)


def listed(session: Session, user_name: str | None = None) -> Sequence[BrowserSession]:
    """The sessions that have not expired, of all users or of one, the oldest first.

    Raises:
        NotFound: no such user.
    """
    wanted = sa.select(BrowserSession).where(BrowserSession.expires_at > int(time.time()))
    if user_name is not None:
        users.find_user(session, user_name)
        wanted = wanted.where(BrowserSession.user_name == user_name)
    return session.scalars(wanted.order_by(BrowserSession.created_at, BrowserSession.id)).all()


def note_uses(session: Session, used_at: dict[str, int]) -> None:
    """Store when sessions were used last, by their ids. Those that have ended are left out."""
    for session_id, at in used_at.items():
        session.execute(
            sa.update(BrowserSession)
            .where(BrowserSession.id == session_id)
            .values(used_at=at)
            .execution_options(synchronize_session=False)
        )
