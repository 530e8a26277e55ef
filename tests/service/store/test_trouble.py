"""A database that is read-only, full or away: requests that need it are refused, all others are
served.
"""

from __future__ import annotations

import functools
import json
import os
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests import waiting
from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres
from tests.service.requests import logged, metrics, well

pytestmark = pytest.mark.slow

until = functools.partial(waiting.until, timeout_s=30)

# Root may write to what is read-only; without these two rights it may not.
AS_OTHERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
UNDER = AS_OTHERS if os.geteuid() == 0 else ()
DISK = 'mount -t tmpfs -o size={size} none {folder} && {then} exec "$@"'
FILL = "head -c 400k /dev/zero > {folder}/filler 2>/dev/null || true"


def on_small_disk(folder: Path, then: str = "", size: str = "600k") -> tuple[str, ...]:
    """What starts a command that sees a disk of 600 KB: an empty database has 260 KB, and as much while it is made in `folder`."""
    script = DISK.format(folder=folder, then=then.format(folder=folder), size=size)
    return ("unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-ec", script, "sh")


def client(server: Server, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=30)


def status(server: Server, key: str | None = None) -> int:
    """What someone else gets."""
    with client(server, key) as http:
        return http.get("/v1/kernels").status_code


def up(http: httpx.Client) -> tuple[float, float]:
    """Whether the database can be read, and written."""
    found = metrics(http)
    read, written = (found[f'warpcall_database_up{{operation="{v}"}}'] for v in ("read", "write"))
    return read, written


def messages(server: Server) -> list[str]:
    """What the log says of the database."""
    lines = [line.get("message", "") for line in logged(server)]
    return [message for message in lines if "the database" in message]


def test_a_folder_that_cannot_be_looked_into_may_hold_keys(sqlite: Database) -> None:
    """Started without them, the server would let everyone on this machine in."""
    sqlite.key("alice")
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    folder.chmod(0)

    said = sqlite.command(status=2, under=UNDER)

    folder.chmod(0o700)
    assert "cannot be written: its file cannot be opened or made" in said


def test_the_commands_say_that_it_is_read_only(sqlite: Database) -> None:
    key = sqlite.key("alice")
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    (folder / "warpcall.sqlite3").chmod(0o400)

    for words in (
        ["users", "add", "bob"],
        ["keys", "create", "alice"],
        ["keys", "revoke", key[:11]],
        ["users", "disable", "alice"],
    ):
        said = sqlite.command(*words, status=1, under=UNDER)

        assert said == (
            f"warpcall-server: the database {folder}/warpcall.sqlite3 cannot be written: "
            "it is read-only\n"
        )
    assert "alice" in sqlite.command("keys", "list", under=UNDER)


def test_calls_run_while_the_disk_is_full_and_usage_is_saved_when_it_is_not(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = {"WARPCALL_DATA_DIR": str(disk)}
    with running_server(settings, on_small_disk(disk)) as server, client(server) as http:
        pid = str(server.process.pid)
        there = ("nsenter", *(() if os.geteuid() == 0 else ("-U",)), "-m", "-t", pid)
        seen = Database("sqlite", settings)
        seen.command("users", "add", "alice", under=there)
        key = seen.command("keys", "create", "alice", "--role=admin", under=there).strip()
        http.headers["authorization"] = f"Bearer {key}"
        # Until the server has seen the key everyone is the local user.
        until(lambda: http.get("/v1/me").json().get("name") == "alice")
        filler = Path(f"/proc/{pid}/root{disk}/filler")
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"0" * 4096):
                pass

        assert well(http).status_code == 200
        until(lambda: up(http)[1] == 0)
        said = messages(server)
        assert len(said) == 1, "once, not each time"
        assert "cannot be written: the disk is full" in said[0]
        assert "cannot be written: the disk is full" in seen.command(
            "users", "add", "bob", status=1, under=there
        )
        assert well(http).status_code == 200

        filler.unlink()
        until(lambda: up(http) == (1, 1))
        until(lambda: "the database can be written again" in messages(server))
        rows = json.loads(seen.command("usage", "--json", under=there))
        assert [row["requests"] for row in rows if row["op"] == "permute"] == [2]


def test_it_does_not_start_on_a_full_disk(sqlite: Database, tmp_path: Path) -> None:
    sqlite.key("alice")
    disk = tmp_path / "disk"
    disk.mkdir()
    file = Path(sqlite.settings["WARPCALL_DATA_DIR"]) / "warpcall.sqlite3"
    under = on_small_disk(disk, f"cp {file} {{folder}}; {FILL};")

    there = Database("sqlite", {"WARPCALL_DATA_DIR": str(disk)})
    said = there.command("--port=0", status=2, under=under)

    assert f"the database {disk}/warpcall.sqlite3 cannot be written: the disk is full\n" in said


@pytest.mark.parametrize("what", ["the file", "the folder", "both"])
def test_it_does_not_start_with_a_read_only_database(sqlite: Database, what: str) -> None:
    sqlite.key("alice")
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    if what != "the folder":
        (folder / "warpcall.sqlite3").chmod(0o400)
    if what != "the file":
        folder.chmod(0o500)

    said = sqlite.command("--port=0", status=2, under=UNDER)

    folder.chmod(0o700)
    reason = (
        "it is read-only"
        if what == "the file"
        else "its folder is read-only, and SQLite must make files there"
    )
    assert f"the database {folder}/warpcall.sqlite3 cannot be written: {reason}\n" in said


def test_it_does_not_start_where_no_database_can_be_created(sqlite: Database) -> None:
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    folder.mkdir()
    folder.chmod(0o500)

    said = sqlite.command("--port=0", status=2, under=UNDER)

    assert f"the database {folder}/warpcall.sqlite3 cannot be created: Permission denied" in said


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_read_only_postgresql_serves_the_keys_that_are_in_it(
    database: Database, postgres: Postgres
) -> None:
    key = database.key("alice", "admin")
    name = database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]
    postgres.psql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")

    with running_server(database.settings) as server, client(server, key) as http:
        assert well(http).status_code == 200
        until(lambda: up(http) == (1, 0))
        assert "it is read-only" in database.command("users", "add", "bob", status=1)

        postgres.psql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        gone(postgres, name)
        until(lambda: up(http) == (1, 1))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_calls_run_while_postgresql_is_away(database: Database, postgres: Postgres) -> None:
    key, other = database.key("alice", "admin"), database.key("bob")
    name = database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]

    with running_server(database.settings) as server, client(server, key) as http:
        assert well(http).status_code == 200
        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        gone(postgres, name)
        until(lambda: up(http)[0] == 0)

        assert well(http).status_code == 200
        assert status(server) == 401
        assert status(server, other) == 200

        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        database.revoke(other)
        until(lambda: status(server, other) == 401)
        until(lambda: up(http) == (1, 1))


def gone(postgres: Postgres, name: str) -> None:
    """Cut all connections to a database."""
    postgres.psql(
        f"DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{name}'; END $$"
    )
