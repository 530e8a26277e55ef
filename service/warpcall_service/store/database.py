"""The database, SQLite or PostgreSQL: sessions, migrations, and the meaning of its errors.

All functions here block. The server therefore uses them in threads, and never while it runs a call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, Unavailable

FILE = "warpcall.sqlite3"
WAIT_S = 5  # to wait for another process that writes, and for a connection
STATEMENT_MS = 10_000  # limit of one statement on PostgreSQL
IDLE_MS = 10_000  # limit between two statements of a writing transaction on PostgreSQL
ANSWER_S = STATEMENT_MS / 1000 + 1  # PostgreSQL itself hangs if an answer takes longer
PACKAGE = Path(__file__).parents[1]
REVISIONS = PACKAGE / "migrations"
MIGRATION_LOCK = 0x77617270  # key of a PostgreSQL advisory lock: the bytes of "warp"

# The first characters of the error codes of SQLite and PostgreSQL, and what they mean.
_MEANINGS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR_SHMSIZE": "the disk is full",  # a file beside the database could not be made
    "53100": "the disk is full",
    "SQLITE_READONLY_DIRECTORY": "its folder is read-only, and SQLite must make files there",
    "SQLITE_READONLY": "it is read-only",
    "25006": "it is read-only",
    "SQLITE_CANTOPEN": "its file cannot be opened or made",
    "SQLITE_BUSY": f"another process has been writing for {WAIT_S} s",
    "55P03": f"another process has been writing for {WAIT_S} s",
    "SQLITE_CORRUPT": "its file is damaged",
    "SQLITE_NOTADB": "its file is no SQLite database",
    "57014": f"it took longer than {STATEMENT_MS // 1000} s",
}


class StoreError(Unavailable):
    """The database cannot be used.

    A caller learns no more than that. The address of the database and the message of its driver are
    for the operator only.

    Args:
        reason: what is wrong with which database, for the log and the administrator's commands.
    """

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__("the database cannot be used at present", retry_after_s=retry_after_s)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ValueRefused(InvalidInput):
    """The database refuses a value, such as a text with a NUL. The same use of it never succeeds.

    The callers of routes whose values are checked never see it.
    """

    def __init__(self) -> None:
        super().__init__("the database refuses a text or a number of this request")


@dataclass(slots=True)
class Uses:
    """How often the server used the database, and how long it waited.

    Attributes:
        ended: number of uses that have ended, also of those that failed.
        waited_s: seconds from the request of each use to its end or its deadline, together.
        failed: number of uses that failed.
    """

    ended: int = 0
    waited_s: float = 0.0
    failed: int = 0


class Store:
    """One database.

    Args:
        url: sqlite:///path or postgresql://...; None means a SQLite file in `folder`.
        folder: the data folder. It is created when it is needed, with access for its owner only.

    Attributes:
        path: of a SQLite file; None for PostgreSQL.
        url: of a PostgreSQL database, with its password; None for SQLite.
        label: names the database in messages, without a password.
        uses: by operation, "read" or "write"; `StoreThreads` counts them in the event loop.

    Raises:
        StoreError: the URL has neither form.
    """

    def __init__(self, url: str | None, folder: Path) -> None:
        self.uses = {"read": Uses(), "write": Uses()}
        self.path = _default_path(folder) if url is None else None
        self.url: sa.URL | None = None
        if url is not None:
            parsed = _parsed(url)
            if parsed.drivername == "postgresql":
                self.url = parsed
                self.label = parsed.set(query={}).render_as_string(hide_password=True)
                self._engine = sa.create_engine(
                    parsed.set(drivername="postgresql+psycopg"),
                    pool_pre_ping=True,
                    pool_timeout=WAIT_S,
                    connect_args=_connect_args(parsed),
                )
                sa.event.listen(self._engine, "begin", _limit_idleness)
                from warpcall_service.store.postgres import limit_answer_time

                limit_answer_time(self._engine, ANSWER_S)
                return
            self.path = Path(str(parsed.database))
        self.label = str(self.path)
        # One connection stays open; opening another one takes a fraction of a millisecond.
        self._engine = sa.create_engine(
            "sqlite://", creator=self._open, poolclass=sa.QueuePool, pool_size=1, max_overflow=14
        )
        sa.event.listen(self._engine, "begin", _begin)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads.

        Raises:
            StoreError: the database cannot be read.
            ValueRefused: it refuses a value of a query.
        """
        with self._connected("read") as connection, Session(connection) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits all its changes at its end, or none of them after an exception.

        Raises:
            StoreError: the database cannot be written; nothing was changed.
            ValueRefused: it refuses a value; nothing was changed.
        """
        with (
            self._connected("written") as connection,
            connection.execution_options(warpcall_writes=True).begin(),
            Session(connection) as session,
        ):
            yield session
            session.flush()

    def revision(self) -> str | None:
        """The number of the database's schema; None if the database is empty."""
        with self._connected("read") as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.scalar(
                sa.text("SELECT version_num FROM alembic_version")
            )
            return found

    def migrate(self) -> bool:
        """Update the schema in one transaction. Returns whether there was anything to update.

        Raises:
            StoreError: the database cannot be written, or has a schema that this server does not
                know.
        """
        if self.exists and not self.needs_migration():
            return False
        if self.path is not None:
            self._make(self.path)
        from alembic import command  # not at the top: 6 MB that a running server does not need
        from alembic.config import Config

        config = Config()
        for name, folder in (("script_location", "store"), ("version_locations", "migrations")):
            config.set_main_option(name, str(PACKAGE / folder).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        with self._connected("written") as connection:
            if self.path is not None:
                raw: Any = connection.connection.dbapi_connection
                raw.execute("PRAGMA journal_mode = WAL")  # the mode is stored in the file
            with connection.execution_options(warpcall_writes=True).begin():
                if self.path is None:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        return True

    def check_writable(self) -> None:
        """Write to a SQLite file, without a change. A PostgreSQL is not checked.

        Raises:
            StoreError: the file cannot be written.
        """
        if self.path is not None:
            with self.write() as session:
                session.connection().exec_driver_sql("PRAGMA user_version = 0")

    @property
    def exists(self) -> bool:
        """Whether the database exists, or may exist; always true for PostgreSQL."""
        try:
            return self.path is None or bool(self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the folder cannot be read
            return True

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def nbytes(self) -> int:
        """Size of the database on its disk, in bytes.

        Raises:
            StoreError: it cannot be read.
        """
        if self.path is not None:
            ends = ("", "-wal")
            files = [Path(f"{self.path}{end}") for end in ends]
            return sum(file.stat().st_size for file in files if file.exists())
        with self._connected("read") as connection:
            size = sa.select(sa.func.pg_database_size(sa.func.current_database()))
            return int(connection.scalar(size) or 0)

    def table_names(self) -> list[str]:
        """Names of all tables, ours and others."""
        with self._connected("read") as connection:
            return sa.inspect(connection).get_table_names()

    def needs_migration(self) -> bool:
        """Whether the schema of the database, which exists, must be made or updated.

        Raises:
            StoreError: the database cannot be read, or this server does not know its schema.
        """
        return self.is_behind(self.revision())

    def is_behind(self, revision: str | None) -> bool:
        """Whether a schema is older than this server's; None stands for an empty database.

        Raises:
            StoreError: this server does not know the schema.
        """
        known = sorted(file.name[1:5] for file in REVISIONS.glob("v*.py"))
        if revision is not None and revision < known[0]:
            raise StoreError(
                f"the database {self.label} has schema {revision}, this server updates schemas from "
                f"{known[0]} on: start with a new database, or update it first as docs/settings.md says"
            )
        if revision is not None and revision not in known:
            raise StoreError(
                f"the database {self.label} has schema {revision}, this server knows up to "
                f"{known[-1]}: a newer server has updated it; update this one"
            )
        return revision != known[-1]

    @contextmanager
    def _connected(self, verb: str) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            if _is_about_value(error):
                raise ValueRefused from error
            raise StoreError(
                f"the database {self.label} cannot be {verb}: {_meaning(error)}", retry_after_s=5
            ) from error

    def _make(self, path: Path) -> None:
        """Create an empty file for its owner only. SQLite gives its other files the same mode."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        except OSError as error:
            raise StoreError(
                f"the database {self.label} cannot be created: {error.strerror}"
            ) from None

    def _open(self) -> sqlite3.Connection:
        """Connect to the file, which must exist: no empty one is made in place of a lost one."""
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=rw",
            uri=True,
            timeout=WAIT_S,
            isolation_level=None,  # `_begin` starts each transaction
            check_same_thread=False,  # the pool gives it to one thread at a time
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _begin(connection: sa.Connection) -> None:
    """Begin a transaction; one that will write locks at once, since locking later may fail."""
    writes = connection.get_execution_options().get("warpcall_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _limit_idleness(connection: sa.Connection) -> None:
    """Let PostgreSQL end a transaction that holds locks while its process is stopped.

    Otherwise a stopped process would prevent all other servers from writing until it continues.
    """
    if connection.get_execution_options().get("warpcall_writes"):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}")


def _default_path(folder: Path) -> Path:
    try:
        return folder.expanduser().absolute() / FILE
    except RuntimeError:
        raise StoreError(
            f"WARPCALL_DATA_DIR must be a folder, got {folder} and a user without a home"
        ) from None


def _parsed(url: str) -> sa.URL:
    """Parse a database URL. Messages show only its beginning, since it may contain a password."""
    got = ""
    try:
        parsed = sa.make_url(url.replace("postgres://", "postgresql://", 1))
        is_file = parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:")
        if parsed.drivername == "postgresql" or is_file:
            return parsed
        got = f", got one that begins with {parsed.drivername}:"
    except (ArgumentError, ValueError):
        pass
    raise StoreError(
        "WARPCALL_DATABASE_URL must be like postgresql://user:password@host/name or "
        f"sqlite:///path{got}"
    )


def _connect_args(url: sa.URL) -> dict[str, Any]:
    """The encoding of a PostgreSQL connection, and its time-outs except those that the URL sets.

    Without the encoding, the driver would return texts of a database with the encoding SQL_ASCII as
    bytes. Such a database converts no text, but PostgreSQL checks that what is sent is UTF-8.
    """
    ours = {
        "connect_timeout": WAIT_S,
        "keepalives_idle": WAIT_S,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": STATEMENT_MS,
    }
    options = f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={WAIT_S}s"
    theirs = url.query.get("options", "")
    return {
        **{name: value for name, value in ours.items() if name not in url.query},
        "client_encoding": "utf8",
        "options": f"{options} {theirs if isinstance(theirs, str) else ' '.join(theirs)}",
    }


def _is_about_value(error: SQLAlchemyError) -> bool:
    """Whether the database refused a value: of the wrong form or range, or too large."""
    return isinstance(error, DataError) or _code(error).startswith(("22", "54"))


def _meaning(error: SQLAlchemyError) -> str:
    code = _code(error)
    for beginning, meaning in _MEANINGS.items():
        if code.startswith(beginning):
            return meaning
    original = error.orig if isinstance(error, DBAPIError) else error
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


def _code(error: SQLAlchemyError) -> str:
    """The error code of SQLite or PostgreSQL; empty if there is none."""
    original: Any = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None) or ""
