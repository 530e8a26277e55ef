"""The database is updated while servers of the release before still run on it."""

from __future__ import annotations

import importlib
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from tests.service.databases import REVISION, Database
from warpcall_service.store.database import MIGRATION_LOCK, REVISIONS, Store, StoreError

NAMES = sorted(file.stem for file in REVISIONS.glob("v*.py"))
VALUES: dict[type, Callable[[], Any]] = {
    str: lambda: secrets.token_hex(3),
    int: lambda: secrets.randbelow(1_000_000),
    float: lambda: 1.5,
    bool: lambda: True,
    bytes: lambda: secrets.token_bytes(4),
}


def at_revision(database: Database, last: str) -> Store:
    """A database with the schema of an earlier release."""
    store = database.store()
    if store.path is not None:
        store._make(store.path)
    with store.write() as session:
        context = MigrationContext.configure(session.connection())
        with Operations.context(context):
            for name in NAMES[: NAMES.index(last) + 1]:
                importlib.import_module(f"warpcall_service.migrations.{name}").upgrade()
        session.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        session.execute(sa.text(f"INSERT INTO alembic_version VALUES ('{last[1:5]}')"))
    return store


def tables_of(store: Store) -> Sequence[sa.Table]:
    """The tables as a server of the present schema knows them; those that refer to others later."""
    metadata = sa.MetaData()
    with store.read() as session:
        metadata.reflect(session.connection())
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def insert_rows(store: Store, tables: Sequence[sa.Table]) -> dict[str, Any]:
    """Insert a row into each table, with the columns that such a server must fill."""
    made: dict[str, Any] = {}
    with store.write() as session:
        for table in tables:
            values = {}
            for column in table.columns:
                if column.foreign_keys:
                    (to,) = column.foreign_keys
                    values[column.name] = getattr(made[to.column.table.name], to.column.name)
                elif column.primary_key or not (column.nullable or column.server_default):
                    values[column.name] = VALUES[column.type.python_type]()
            query = sa.insert(table).values(values).returning(*table.columns)
            made[table.name] = session.execute(query).one()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("before", NAMES)
def test_an_older_server_goes_on_with_the_new_schema(before: str, database: Database) -> None:
    store = at_revision(database, before)
    tables = tables_of(store)
    earlier = insert_rows(store, tables)

    assert store.migrate() == (before != NAMES[-1])

    assert store.revision() == REVISION
    later = insert_rows(store, tables)
    with store.write() as session:
        for table in reversed(tables):
            found = session.execute(sa.select(table)).all()
            assert {earlier[table.name], later[table.name]} <= {*found}
            own = [c == getattr(later[table.name], c.name) for c in table.primary_key]
            values = {c.name: getattr(later[table.name], c.name) for c in table.columns}
            session.execute(sa.update(table).where(*own).values(values))
            session.execute(sa.delete(table).where(*own))
            assert session.execute(sa.select(table).where(*own)).all() == []
    store.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_that_may_not_change_the_schema_yet_changes_nothing(database: Database) -> None:
    """As while another server changes it for longer than WAIT_S."""
    store, other = database.store(), database.store()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with other.write() as session:
            session.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            held.set()
            done.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(60)
    try:
        with pytest.raises(StoreError, match="another process has been writing for 5 s"):
            store.migrate()
        refused_at = store.revision()
    finally:
        done.set()
        holding.join()

    assert store.migrate()
    assert (refused_at, store.revision()) == (None, REVISION)
    for one in (store, other):
        one.close()
