"""Ids of hexadecimal digits, which users may cut short."""

from __future__ import annotations

import re
from typing import Any, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session

from warpcall.errors import InvalidInput

Ts = TypeVarTuple("Ts")


def find(
    session: Session,
    query: sa.Select[*Ts],
    column: InstrumentedAttribute[str],
    digits: str,
    pattern: re.Pattern[str],
    what: str,
) -> sa.Row[*Ts] | None:
    """The row of a query whose id is, or begins with, `digits`; None if there is none.

    Args:
        column: that has the ids.
        digits: as a user gave them.
        pattern: of ids and of their beginnings. What does not match it names no row.
        what: names the rows in the error's message, such as "jobs".

    Raises:
        InvalidInput: the ids of several rows begin so.
    """
    if not pattern.fullmatch(digits):
        return None
    found = session.execute(query.where(_begins_with(column, digits)).limit(2)).all()
    if len(found) > 1:
        raise InvalidInput(
            f"several {what} have ids that begin with {digits}, give more", field="id"
        )
    return found[0] if found else None


def _begins_with(column: InstrumentedAttribute[str], digits: str) -> sa.ColumnElement[Any]:
    """Whether the id in a column begins with these digits. An index on the column serves it."""
    return sa.and_(column >= digits, column < f"{digits}g")  # "g" is behind all digits
