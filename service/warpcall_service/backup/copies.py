"""Makes a backup of a server's data, and restores one where there is none."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from warpcall import __version__
from warpcall_service.backup import databases
from warpcall_service.backup.archive import (
    DATABASE,
    MEMBER,
    About,
    BackupError,
    BackupReader,
    BackupWriter,
    Kind,
)
from warpcall_service.store.database import Store
from warpcall_service.store.times import moment, now_ms

BESIDE = (
    "-wal",
    "-shm",
    "-journal",
)  # ends of the names of files that SQLite has beside a database


def make_backup(store: Store, data_dir: Path, folders: Sequence[str], target: Path) -> str:
    """Write a backup of the database and of files in the data folder; what was written, as text.

    Servers may run meanwhile. The database is copied first: whoever adds a file writes the file
    before its row, so the files of all rows that were copied exist, unless they are deleted since.

    Args:
        folders: names of the folders in the data folder whose files are copied.

    Raises:
        BackupError: it cannot be written, and no file is left.
        StoreError: the database cannot be read.
    """
    if not store.exists or (schema := store.revision()) is None:
        raise BackupError(f"there is no database at {store.label}")
    store.needs_migration()  # refuses a schema that this version does not know
    kind: Kind = "sqlite" if store.url is None else "postgresql"
    about = About(kind=kind, schema=schema, version=__version__, created_at=moment(now_ms()))
    writer = BackupWriter(target)
    with writer.open(about):
        with _temporary(target.parent) as folder:
            copy = folder / DATABASE
            if store.url is not None:
                databases.dump_postgresql(store.url, copy)
            elif store.path is not None:
                databases.copy_sqlite(store.path, copy)
            writer.add(DATABASE, copy)
        for name in folders:
            for path in _files(data_dir / name):
                member = f"{name}/{path.name}"
                if MEMBER.fullmatch(member):
                    writer.add(member, path)
    nbytes = target.stat().st_size
    return f"{target}: {store.label} (schema {schema}) and {writer.files} files, {nbytes} bytes"


def restore_backup(store: Store, data_dir: Path, folders: Sequence[str], source: Path) -> str:
    """Restore a backup; what was restored, as text.

    Nothing is written before the backup was read and checked to its end, and nothing is overwritten.

    Raises:
        BackupError: the backup cannot be used, or there is a database or are files already.
        StoreError: the database cannot be used.
    """
    backup = BackupReader(source)
    kind = "sqlite" if store.url is None else "postgresql"
    if backup.about.kind != kind:
        raise BackupError(
            f"{source} has a {backup.about.kind} database, and {store.label} is {kind}; set "
            "WARPCALL_DATABASE_URL to one of its kind"
        )
    store.is_behind(backup.about.schema)  # refuses one that this version does not know
    if foreign := {name.partition("/")[0] for name in backup.names} - {DATABASE, *folders}:
        raise BackupError(
            f"{source} has files of the folder {min(foreign)}, which is not known here"
        )
    _check_empty(store, data_dir, folders)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BackupError(f"{data_dir} cannot be made: {error.strerror}") from None
    with contextlib.ExitStack() as undo, _temporary(data_dir) as folder:
        number = 0
        for name in folders:
            (folder / name).mkdir(mode=0o700)
            count = backup.extract_folder(name, folder / name)
            if count:
                (folder / name).replace(data_dir / name)  # in place of an empty folder
                undo.callback(shutil.rmtree, data_dir / name)
            number += count
        copy = folder / DATABASE
        backup.extract(DATABASE, copy)
        if store.url is not None:
            databases.load_postgresql(store.url, copy)
        elif store.path is not None:
            databases.check_sqlite(copy)
            _place(copy, store.path)
        undo.pop_all()
    about = backup.about
    return f"{store.label} (schema {about.schema}) and {number} files, of {about.created_at}"


def _check_empty(store: Store, data_dir: Path, folders: Sequence[str]) -> None:
    """Refuse to restore where something is."""
    if store.path is None and store.table_names():
        raise BackupError(f"{store.label} is not empty: name an empty database")
    if store.path is not None:
        for path in (store.path, *(Path(f"{store.path}{end}") for end in BESIDE)):
            if path.exists():
                raise BackupError(f"{path} exists already: move it away, or name another place")
    for name in folders:
        if any(_files(data_dir / name)):
            raise BackupError(f"{data_dir / name} has files already: move it away")


def _place(copy: Path, target: Path) -> None:
    """Give a database its name, unless there is one meanwhile."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if copy.stat().st_dev == target.parent.stat().st_dev:
            target.hardlink_to(copy)
        else:
            part = target.with_name(f"{target.name}.part")
            shutil.copyfile(copy, part)
            part.chmod(0o600)
            try:
                target.hardlink_to(part)
            finally:
                part.unlink()
    except FileExistsError:
        raise BackupError(f"{target} was made by another program meanwhile") from None
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror}") from None


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        yield from sorted(folder.iterdir())


@contextlib.contextmanager
def _temporary(beside: Path) -> Iterator[Path]:
    """A folder on the disk of `beside`, for its owner only."""
    try:
        made = tempfile.TemporaryDirectory(prefix=".warpcall-backup-", dir=beside)
    except OSError as error:
        raise BackupError(f"{beside} cannot be written: {error.strerror or error}") from None
    with made as name:
        yield Path(name)
