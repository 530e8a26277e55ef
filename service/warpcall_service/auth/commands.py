"""What the administrator's commands share: the database of this environment, and tables of text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound
from warpcall_service.extension import load_settings
from warpcall_service.settings import SettingsError
from warpcall_service.store.database import Store, StoreError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def opened_store() -> Iterator[Store]:
    """The database of this environment. An error becomes one line on stderr and an exit status."""
    try:
        settings = load_settings()
        url = settings.database_url
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
        try:
            yield store
        finally:
            store.close()
    except (SettingsError, StoreError, InvalidInput, NotFound) as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None


@contextmanager
def changing() -> Iterator[Session]:
    """A transaction that changes the database of this environment."""
    with opened_store() as store:
        store.migrate()
        with store.write() as session:
            yield session


@contextmanager
def reading() -> Iterator[Session]:
    """A session that only reads the database of this environment."""
    with opened_store() as store:
        store.migrate()
        with store.read() as session:
            yield session


def print_rows(rows: list[dict[str, Any]], columns: Iterable[str], as_json: bool) -> None:
    """Print rows as a table, or as JSON."""
    if as_json:
        print_line(json.dumps(rows))
        return
    table: list[Mapping[str, Any]] = [{name: name for name in columns}, *rows]
    widths = {name: max(len(str(row[name])) for row in table) for name in columns}
    for row in table:
        print_line(
            "  ".join(str(row[name]).ljust(width) for name, width in widths.items()).rstrip()
        )


def print_line(text: str) -> None:
    """Print a line on stdout."""
    sys.stdout.write(text + "\n")
