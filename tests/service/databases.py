"""Databases for tests, of both kinds, and what an administrator does with them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.server import COMMAND
from tests import forks
from tests.suspended import suspended
from warpcall_service.auth import users
from warpcall_service.identity import Role
from warpcall_service.store.database import Store

FOLDERS = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
if found := shutil.which("initdb"):
    FOLDERS.append(Path(found).parent)
POSTGRES = FOLDERS[0] if FOLDERS else None  # where its programs are
REVISION = "0027"  # of the tables, after all migrations
OLDEST = "0015"  # schema that a server updates


@dataclass(frozen=True)
class Database:
    """A database that nobody else uses.

    Attributes:
        settings: the variables by which a server, or a command, finds it.
    """

    kind: str
    settings: dict[str, str]

    def store(self) -> Store:
        url = self.settings.get("WARPCALL_DATABASE_URL")
        return Store(url, Path(self.settings["WARPCALL_DATA_DIR"]))

    def key(self, user: str, role: Role = "call", lifetime_s: int | None = None) -> str:
        """A new key; the user is added if need be."""
        store = self.store()
        store.migrate()
        with store.write() as session:
            if user not in [known.name for known, _ in users.list_users(session)]:
                users.add_user(session, user)
                session.flush()
            text = users.create_key(session, user, role, lifetime_s)[1]
        store.close()
        return text

    def revoke(self, key: str) -> None:
        store = self.store()
        with store.write() as session:
            users.revoke_key(session, key)
        store.close()

    def command(self, *words: str, status: int = 0, under: Sequence[str] = ()) -> str:
        """What `warpcall-server` prints, if it ends with `status`: else on stderr."""
        done = forks.run([*under, *COMMAND, *words], environment(self.settings))
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if status else done.stdout

    def listed(self, *words: str) -> list[dict[str, Any]]:
        """What a command says in JSON."""
        found: list[dict[str, Any]] = json.loads(self.command(*words, "--json"))
        return found

    def sql(self, *statements: str) -> None:
        """Do to it what no command does."""
        store = self.store()
        with store.write() as session:
            for statement in statements:
                session.connection().exec_driver_sql(statement)
        store.close()


def environment(settings: dict[str, str]) -> dict[str, str]:
    """This process's, with no setting but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WARPCALL_")}
    return {**kept, **settings}


@dataclass(frozen=True)
class Postgres:
    """A cluster of its own, reached through a socket in its folder.

    Attributes:
        url: with `{}` for the name of a database.
        folder: where its data, its log and its socket are.
    """

    url: str
    folder: Path

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let all its processes stand still: connections are made, and nothing is answered."""
        postmaster = self._postmaster()
        postmaster.suspend()  # so that there are no further ones
        with suspended(*postmaster.children(), postmaster):
            yield

    @contextmanager
    def silent(self, database: Database) -> Iterator[None]:
        """Let those that serve a database's present connections stand still; new ones are served."""
        serving = self.processes(self._name(database))
        assert serving
        with suspended(*serving):
            yield

    @contextmanager
    def away(self, database: Database) -> Iterator[None]:
        """Refuse connections to a database, and end those that there are."""
        name = self._name(database)
        self.psql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        self.psql(ended)
        try:
            yield
        finally:
            self.psql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

    @contextmanager
    def losing_answers(self) -> Iterator[None]:
        """Commit each write, and break its connection before the commit is acknowledged.

        Commits wait for a standby server that there is not, until their connections are ended.
        """
        ended = threading.Event()
        waiting = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )

        def end_them() -> None:
            while not ended.wait(0.1):
                self.psql(waiting)

        self.psql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self.psql("SELECT pg_reload_conf()")
        ending = threading.Thread(target=end_them)
        ending.start()
        try:
            yield
        finally:
            self.psql("ALTER SYSTEM RESET synchronous_standby_names")
            self.psql("SELECT pg_reload_conf()")
            ended.set()
            ending.join()

    def _name(self, database: Database) -> str:
        return database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]

    def processes(self, name: str) -> list[psutil.Process]:
        """Those that serve the connections to a database at present."""
        found = []
        for child in self._postmaster().children():
            with suppress(psutil.NoSuchProcess):
                if f" {name} " in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def _postmaster(self) -> psutil.Process:
        return psutil.Process(int((self.folder / "data/postmaster.pid").read_text().split()[0]))

    def psql(self, statement: str) -> None:
        command = [f"{POSTGRES}/psql", "-qXv", "ON_ERROR_STOP=1", "-c", statement]
        subprocess.run([*command, self.url.format("postgres")], check=True, timeout=60)


@contextmanager
def postgres_cluster(address: str | None = None) -> Iterator[Postgres]:
    """PostgreSQL from this machine's programs, which refuse to run as root: then as `postgres`.

    Args:
        address: at which the URL reaches it, from anywhere. None means the socket in its folder.
    """
    if POSTGRES is None:
        pytest.skip("PostgreSQL's programs are not installed")
    with tempfile.TemporaryDirectory(prefix="warpcall-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        who: dict[str, Any] = {"timeout": 60}
        if os.geteuid() == 0:
            who |= {"user": "postgres", "cwd": "/"}
            shutil.chown(folder, "postgres")
        data = str(folder / "data")
        initdb = [f"{POSTGRES}/initdb", "-A", "trust", "-U", "postgres", "-N", "-D", data]
        subprocess.run(initdb, stdout=subprocess.DEVNULL, check=True, **who)
        control = [f"{POSTGRES}/pg_ctl", "-s", "-w", "-D", data, "-l", str(folder / "log")]
        if address:
            with (folder / "data/pg_hba.conf").open("a") as allowed:
                allowed.write("host all all all trust\n")
        options = f"-k {folder} -c listen_addresses={address or ''} -c fsync=off"
        subprocess.run([*control, "-o", options, "start"], check=True, **who)
        try:
            where = f"{address}/{{}}" if address else f"/{{}}?host={folder}"
            yield Postgres(f"postgresql://postgres@{where}", folder)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, **who)


def new_postgresql(cluster: Postgres, folder: Path, encoding: str = "") -> Database:
    """An empty PostgreSQL database, with the cluster's encoding unless another one is given."""
    name = f"test_{secrets.token_hex(4)}"
    how = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0" if encoding else ""
    cluster.psql(f"CREATE DATABASE {name} {how}")
    settings = {
        "WARPCALL_DATA_DIR": str(folder / "data"),
        "WARPCALL_DATABASE_URL": cluster.url.format(name),
    }
    return Database("postgresql", settings)


def new_database(request: pytest.FixtureRequest, folder: Path) -> Database:
    """An empty database of the kind that `request.param` names."""
    if request.param == "postgresql":
        return new_postgresql(request.getfixturevalue("postgres"), folder)
    return Database(request.param, {"WARPCALL_DATA_DIR": str(folder / "data")})
