"""The table of nodes: a server's row with its heartbeats, and the rows of the others.

Every function takes a session and blocks. All times come from the database's clock; that of a SQLite
database is the machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from warpcall_service.nodes.tables import NodeRow

KEPT_MS = 86_400_000  # how long the row of a server that has left is kept
MAX_NODES = 1000  # that are read

JULIAN_1970 = 2_440_587.5  # the day of 1970-01-01 as SQLite counts days
DAY_MS = 86_400_000


class now_ms(FunctionElement[int]):  # noqa: N801  # a function of SQL
    """The present time by the database's clock, in milliseconds since 1970."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _now_of_postgresql(*_: object, **__: object) -> str:
    # `now()` would be the time at which the transaction began.
    return "CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "sqlite")
def _now_of_sqlite(*_: object, **__: object) -> str:
    return f"CAST((julianday('now') - {JULIAN_1970}) * {DAY_MS} AS INTEGER)"


_NOW_MS = now_ms()


@dataclass(frozen=True, slots=True)
class Beat:
    """What a server writes with each heartbeat.

    Attributes:
        facts: JSON, as in `NodeRow`.
        first: whether it is the first one since the server started.
    """

    id: str
    url: str
    host: str
    facts: str
    draining: bool
    first: bool


def write_beat(session: Session, beat: Beat) -> tuple[int, Sequence[NodeRow]]:
    """Write a heartbeat, and return the present time and the rows of all servers.

    The row is made if there is none. A heartbeat in the future, as after the database's clock was
    set back, is set to the present. Otherwise a server that is gone would look alive until then.
    """
    values = {"url": beat.url, "host": beat.host, "facts": beat.facts, "draining": beat.draining}
    values |= {"beat_ms": _NOW_MS, "stopped_ms": None}
    values_of_new = {"id": beat.id, "started_ms": _NOW_MS, **values}
    started = {"started_ms": _NOW_MS, "drained": False} if beat.first else {}
    changed: dict[str, Any] = {"index_elements": ["id"], "set_": {**values, **started}}
    made: sa.Insert
    if session.get_bind().dialect.name == "sqlite":
        made = sqlite.insert(NodeRow).values(values_of_new).on_conflict_do_update(**changed)
    else:
        made = postgresql.insert(NodeRow).values(values_of_new).on_conflict_do_update(**changed)
    session.execute(made)
    # Rows that another server has locked are skipped. Two servers that wait for each other's rows
    # would block each other.
    ahead = sa.select(NodeRow.id).where(NodeRow.beat_ms > _NOW_MS).with_for_update(skip_locked=True)
    session.execute(
        sa.update(NodeRow)
        .where(NodeRow.id.in_(ahead))
        .values(beat_ms=_NOW_MS)
        .execution_options(synchronize_session=False)
    )
    if beat.first:
        left_ms = sa.func.coalesce(NodeRow.stopped_ms, NodeRow.beat_ms)
        session.execute(
            sa.delete(NodeRow)
            .where(left_ms < _NOW_MS - KEPT_MS)
            .execution_options(synchronize_session=False)
        )
    query = sa.select(NodeRow).order_by(NodeRow.beat_ms.desc()).limit(MAX_NODES)
    rows = session.scalars(query.execution_options(populate_existing=True)).all()
    session.expunge_all()  # the rows are read in another thread, after the session has ended
    return session.scalars(sa.select(_NOW_MS)).one(), rows


def drain(session: Session, name: str, drained: bool) -> Sequence[NodeRow]:
    """Have servers take no more jobs, or take jobs again.

    Args:
        name: id of a server, or the host name of its machine.

    Returns:
        The servers, none if there is none of this name that runs.
    """
    here = sa.or_(NodeRow.id == name, NodeRow.host == name), NodeRow.stopped_ms.is_(None)
    rows = session.scalars(sa.select(NodeRow).where(*here).order_by(NodeRow.id)).all()
    session.execute(
        sa.update(NodeRow)
        .where(*here)
        .values(drained=drained)
        .execution_options(synchronize_session=False)
    )
    return rows


def write_end(session: Session, node_id: str) -> None:
    """Write that a server leaves in good order."""
    session.execute(
        sa.update(NodeRow)
        .where(NodeRow.id == node_id)
        .values(stopped_ms=_NOW_MS)
        .execution_options(synchronize_session=False)
    )
