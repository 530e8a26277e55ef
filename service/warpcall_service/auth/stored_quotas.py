"""The quotas of users and roles in the database. Every function takes a session and blocks."""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound
from warpcall.users import QuotaList, StoredQuota
from warpcall_service import quotas
from warpcall_service.auth import users
from warpcall_service.auth.tables import StoredLimit
from warpcall_service.auth.users import Snapshot
from warpcall_service.identity import ROLES
from warpcall_service.quotas import Quotas, Subject
from warpcall_service.text import brief


def set_limit(
    session: Session, known: Quotas, subject: Subject, name: str, given: object
) -> StoredQuota:
    """Give a limit to a user or a role, in place of the one that they had.

    Args:
        given: a number, or a text such as "2GiB".

    Raises:
        NotFound: there is no such user.
        InvalidInput: there is no such role or quota, or the limit is none that it may have.
    """
    users.count_change(session)  # first: it lets one transaction at a time change quotas
    limit = quotas.parse_limit(known.settings, name, given)
    _check_subject(session, subject)
    row = session.get(StoredLimit, (subject.kind, subject.name, name))
    if row is None:
        row = StoredLimit(kind=subject.kind, subject=subject.name, name=name)
        session.add(row)
    row.value, row.changed_at = float(limit), int(time.time())
    return _shown(known, subject, name, limit)


def remove(session: Session, known: Quotas, subject: Subject, name: str) -> None:
    """Remove a quota, so that the one of the role, or the setting, applies.

    Raises:
        NotFound: there is no such quota, or no such user.
        InvalidInput: there is no such role, or no quota has this name.
    """
    users.count_change(session)
    quotas.check_name(known.settings, name)
    _check_subject(session, subject)
    row = session.get(StoredLimit, (subject.kind, subject.name, name))
    if row is None:
        raise NotFound(f"the {subject} has no quota {name}", field="quota")
    session.delete(row)


def listed(session: Session, known: Quotas) -> QuotaList:
    """All quotas that this server knows, those of roles first, and the settings."""
    stored, defaults = users.stored_quotas(session), known.defaults
    by_rank = sorted(
        stored,
        key=lambda key: (key[0] != "role", ROLES.index(key[1]) if key[1] in ROLES else 0, key),
    )
    return QuotaList(
        quotas=[
            _shown(known, Subject(kind, subject), name, stored[kind, subject][name])
            for kind, subject in by_rank
            for name in defaults
            if name in stored[kind, subject]
        ],
        settings=dict(defaults),
    )


def apply(session: Session, known: Quotas) -> None:
    """Let `known` have the quotas of the database, as in a server."""
    found = users.snapshot(session, Snapshot())
    known.update(found.quotas, found.roles(time.time())[0])


def _check_subject(session: Session, subject: Subject) -> None:
    if subject.kind == "user":
        users.find_user(session, subject.name)
    elif subject.name not in ROLES:
        raise InvalidInput(
            f"the role must be {', '.join(ROLES)}, got {brief(subject.name)}", field="role"
        )


def _shown(known: Quotas, subject: Subject, name: str, limit: float) -> StoredQuota:
    return StoredQuota(
        kind=subject.kind,
        subject=subject.name,
        name=name,
        limit=known.as_number(name, limit),
        setting=known.defaults[name],
    )
