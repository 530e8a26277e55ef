"""The administrator's command `drain`. It uses the database directly."""

from __future__ import annotations

from typing import Annotated

import typer

from warpcall_bench.settings import BenchSettings
from warpcall_service.nodes import registry
from warpcall_service.settings import SettingsError
from warpcall_service.store.database import Store, StoreError


def drain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="Id of a server, or host name of its machine: `warpcall nodes`."
        ),
    ],
    off: Annotated[bool, typer.Option("--off", help="Let it take jobs again.")] = False,
) -> None:
    """Have a server take no more benchmark jobs. Those that run there go on, and so do calls.

    Stop the server when its jobs have ended, or at once: it then hands them back to the queue. A
    server that is restarted takes jobs again.
    """
    try:
        settings = BenchSettings.load()
        url = settings.database_url
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
        store.migrate()
        with store.write() as session:
            found = [(row.id, row.host) for row in registry.drain(session, name, not off)]
        store.close()
    except (SettingsError, StoreError) as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None
    if not found:
        alone = "; a server of its own with SQLite cannot be drained" if store.path else ""
        typer.echo(f"warpcall-server: no server {name[:60]!r} runs{alone}", err=True)
        raise typer.Exit(1)
    for node_id, host in found:
        typer.echo(f"{node_id} on {host} {'takes jobs again' if off else 'takes no more jobs'}")
