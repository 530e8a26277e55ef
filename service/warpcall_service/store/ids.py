"""Ids of hexadecimal digits, which users may cut short."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute


def begins_with(column: InstrumentedAttribute[str], digits: str) -> sa.ColumnElement[Any]:
    """Whether the id in a column begins with these digits. An index on the column serves it."""
    return sa.and_(column >= digits, column < f"{digits}g")  # "g" is behind all digits
