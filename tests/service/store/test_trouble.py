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

until = functools.partial(waiting.until, timeout_s=30)

# Root may write to what is read-only; without these two rights it may not.
AS_OTHERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
UNDER = AS_OTHERS if os.geteuid() == 0 else ()
DISK = 'mount -t tmpfs -o size=600k none {folder} && {then} exec "$@"'
FILL = "head -c 400k /dev/zero > {folder}/filler 2>/dev/null || true"


def on_small_disk(folder: Path, then: str = "") -> tuple[str, ...]:
    """What starts a command that sees a disk of 600 KB: an empty database has 260 KB, and as much while it is made in `folder`."""
    script = DISK.format(folder=folder, then=then.format(folder=folder))
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


def read_only(database: Database) -> Path:
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    for file in folder.iterdir():
        file.chmod(0o400)
    folder.chmod(0o500)
    return folder


def test_a_read_only_disk_serves_the_keys_that_are_on_it(sqlite: Database) -> None:
    key = sqlite.key("alice", "admin")
    folder = read_only(sqlite)

    with running_server(sqlite.settings, UNDER) as server, client(server, key) as http:
        assert status(server) == 401
        assert well(http).status_code == 200
        until(lambda: up(http) == (1, 0))
        until(lambda: bool(messages(server)))
        assert well(http).status_code == 200
        said = messages(server)

        folder.chmod(0o700)
        (folder / "warpcall.sqlite3").chmod(0o600)
        until(lambda: up(http) == (1, 1))
        until(lambda: "the database can be written again" in messages(server))

        assert well(http).status_code == 200

    assert len(said) == 1, "once, not each time"
    assert f"the database {folder}/warpcall.sqlite3 cannot be written: it is read-only" in said
    rows = sqlite.listed("usage")
    assert sum(row["requests"] for row in rows if row["op"] == "permute") == 3, "none was lost"


def test_a_read_only_disk_without_a_database_is_no_hindrance_to_this_machine(
    sqlite: Database,
) -> None:
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    folder.mkdir()
    folder.chmod(0o500)

    with running_server(sqlite.settings, UNDER) as server, client(server) as http:
        assert well(http).status_code == 200
        assert up(http) in ((1, 1), (0, 1))
        assert (
            "cannot be created: Permission denied; until it can, there are no keys"
            in messages(server)[0]
        )

        folder.chmod(0o700)
        key = sqlite.key("alice", "admin")
        until(lambda: http.get("/v1/kernels").status_code == 401)
        http.headers["authorization"] = f"Bearer {key}"
        assert well(http).status_code == 200


def test_a_folder_that_cannot_be_looked_into_may_hold_keys(sqlite: Database) -> None:
    """Started without them, the server would let everyone on this machine in."""
    sqlite.key("alice")
    folder = read_only(sqlite)
    folder.chmod(0)

    said = sqlite.command(status=2, under=UNDER)

    folder.chmod(0o700)
    assert "cannot be read: its file cannot be opened or made" in said


def test_the_commands_say_that_it_is_read_only(sqlite: Database) -> None:
    key = sqlite.key("alice")
    folder = read_only(sqlite)

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


def test_what_was_not_brought_over_from_the_log_is_not_passed_over(sqlite: Database) -> None:
    """Read without its log, a database would show revoked keys as good."""
    key = sqlite.key("alice")
    store = sqlite.store()
    with store.write() as session:
        session.connection().exec_driver_sql("UPDATE api_keys SET revoked_at = 1")
    copied = {file.name: file.read_bytes() for file in store.path.parent.iterdir()}  # type: ignore[union-attr]
    store.close()
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    for name in ("warpcall.sqlite3", "warpcall.sqlite3-wal"):
        (folder / name).write_bytes(copied[name])
    read_only(sqlite)

    said = sqlite.command(status=2, under=UNDER)

    assert key
    assert "warpcall.sqlite3 cannot be read: " in said


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
        assert any("cannot be written: the disk is full" in m for m in messages(server))
        assert "cannot be written: the disk is full" in seen.command(
            "users", "add", "bob", status=1, under=there
        )
        assert well(http).status_code == 200

        filler.unlink()
        until(lambda: up(http) == (1, 1))
        rows = json.loads(seen.command("usage", "--json", under=there))
        assert [row["requests"] for row in rows if row["op"] == "permute"] == [2]


def test_it_starts_on_a_full_disk_with_the_keys_that_are_there(
    sqlite: Database, tmp_path: Path
) -> None:
    key = sqlite.key("alice", "admin")
    disk = tmp_path / "disk"
    disk.mkdir()
    file = Path(sqlite.settings["WARPCALL_DATA_DIR"]) / "warpcall.sqlite3"
    under = on_small_disk(disk, f"cp {file} {{folder}}; {FILL};")

    with (
        running_server({"WARPCALL_DATA_DIR": str(disk)}, under) as server,
        client(server, key) as http,
    ):
        assert status(server) == 401
        assert well(http).status_code == 200
        until(lambda: up(http) == (1, 0))
        assert well(http).status_code == 200


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
