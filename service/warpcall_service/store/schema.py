"""The base of all tables, which stand in `tables.py` of the folders that own them.

Each change of a table needs a file in migrations/. Times are whole seconds since 1970 (`_at`),
or milliseconds (`_ms`), so that both databases keep and compare them alike.
"""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase

NAME_LENGTH = 64
NODE_ID_LENGTH = 16
CODE_LENGTH = 160  # of the name of an op or an implementation, which may begin with a user's name


class Base(DeclarativeBase):
    """Base class of all tables."""
