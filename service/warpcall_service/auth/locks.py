"""Locks that a transaction holds until it ends, also against servers that share the database."""

from __future__ import annotations

from sqlalchemy.orm import Session

from warpcall_service.auth.tables import Change, User


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
