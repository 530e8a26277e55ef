"""The administrator's commands `backup` and `restore`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from warpcall_service.backup.archive import BackupError
from warpcall_service.backup.copies import make_backup, restore_backup
from warpcall_service.extension import load, load_settings
from warpcall_service.settings import SettingsError
from warpcall_service.store.database import Store, StoreError

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]


def backup(file: File) -> None:
    """Write the database, with users, keys and jobs, and this server's artefacts to one new file.

    Servers may go on meanwhile. Whoever can read the file can read all jobs and uploads; it is
    readable for its owner only.
    """
    with _data() as (store, data_dir, folders):
        done = make_backup(store, data_dir, folders, file.absolute())
        sys.stdout.write(f"wrote {done}\n")


def restore(file: File) -> None:
    """Restore a backup where there is no database and no artefact yet. Stop the server first.

    Keys that were revoked since the backup are valid again.
    """
    with _data() as (store, data_dir, folders):
        done = restore_backup(store, data_dir, folders, file.absolute())
        sys.stdout.write(f"restored {done}\n")


@contextmanager
def _data() -> Iterator[tuple[Store, Path, tuple[str, ...]]]:
    """The database, the data folder, and the folders in it that belong to a backup."""
    try:
        settings = load_settings()
        url = settings.database_url
        try:
            data_dir = settings.data_dir.expanduser().absolute()
        except RuntimeError:
            raise BackupError(
                f"WARPCALL_DATA_DIR must be a folder, got {settings.data_dir} and a user without a home"
            ) from None
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
        extension = load()
        try:
            yield store, data_dir, () if extension is None else extension.data_folders
        finally:
            store.close()
    except (SettingsError, StoreError, BackupError) as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None
