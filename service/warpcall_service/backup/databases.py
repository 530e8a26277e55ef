"""Copies of a database in a file: SQLite's online backup, and PostgreSQL's own programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess  # nosec B404
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from warpcall_service.backup.archive import BackupError
from warpcall_service.store.database import WAIT_S

MAX_ERROR_CHARS = 500  # of what a program of PostgreSQL says


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database that servers may be writing to.

    All pages are copied in one step, which is one transaction that reads: the copy has the state of
    one moment, and those that write do not wait.
    """
    try:
        with (
            contextlib.closing(_connect(source, "ro")) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing, pages=-1)
            # As one file, without others beside it. A server sets the mode again at its start.
            writing.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise BackupError(f"the database {source} cannot be copied: {error}") from None


def check_sqlite(path: Path) -> None:
    """Refuse a file that is no sound database."""
    try:
        with contextlib.closing(_connect(path, "rw")) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise BackupError(f"the database in the backup is damaged: {found}")


def dump_postgresql(url: sa.URL, target: Path) -> None:
    """Copy a database by pg_dump, which reads the state of one moment while others write."""
    _run("pg_dump", url, ["--format=custom", "--no-owner", "--no-privileges", f"--file={target}"])


def load_postgresql(url: sa.URL, source: Path) -> None:
    """Fill an empty database by pg_restore, in one transaction."""
    options = ["--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    _run("pg_restore", url, [*options, str(source)])


def require_program(name: str) -> str:
    """The path of a program of PostgreSQL.

    Raises:
        BackupError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise BackupError(
            f"{name} is not installed, which copies a PostgreSQL database; install PostgreSQL's "
            "client programs (Debian: postgresql-client) of the server's version or a newer one"
        )
    return found


def _run(program: str, url: sa.URL, options: list[str]) -> None:
    # Other users of this machine see the arguments of a program, but not its environment.
    environment: dict[str, Any] = {"PGCONNECT_TIMEOUT": f"{WAIT_S}", **os.environ}
    password = url.query.get("password", url.password)
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    bare = url._replace(password=None).difference_update_query(["password"])
    address = bare.render_as_string(hide_password=False)
    done = subprocess.run(  # nosec B603
        [require_program(program), f"--dbname={address}", "--no-password", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[:MAX_ERROR_CHARS]
        raise BackupError(f"{program} failed with status {done.returncode}: {said}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=30)
