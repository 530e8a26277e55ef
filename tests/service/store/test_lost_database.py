"""A database that is lost: nothing is promised that it cannot keep, and nobody is let in by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import client
from tests.service.store.test_trouble import UNDER
from tests.waiting import until
from warpcall_service.store.database import Store, StoreError

SMALL = {"WARPCALL_ARENA_BYTES": "16MiB"}


def folder(database: Database) -> Path:
    return Path(database.settings["WARPCALL_DATA_DIR"])


def files(database: Database) -> list[Path]:
    """The database and the two files that SQLite may have beside it."""
    return sorted(folder(database).glob("warpcall.sqlite3*"))


def served(database: Database) -> None:
    """Serve with this database until the server has seen its keys."""
    with running_server({**database.settings, **SMALL}) as server:
        assert server.get("/v1/me")[0] == 401


def refused(database: Database, **settings: str) -> str:
    """What a server says that does not start."""
    return Database(database.kind, {**database.settings, **settings}).command(
        "--port=0", "--devices=cpu", status=2
    )


@pytest.mark.parametrize("lost", ["its file", "what is in it", "the folder of a running server"])
def test_a_server_that_had_keys_does_not_start_without_any(sqlite: Database, lost: str) -> None:
    key = sqlite.key("alice", "admin")
    shutil.copytree(folder(sqlite), folder(sqlite).with_name("backup"))
    if lost == "the folder of a running server":
        with running_server({**sqlite.settings, **SMALL}) as server, client(server, key) as http:
            shutil.rmtree(folder(sqlite))
            until(lambda: (folder(sqlite) / "keys-exist").exists())
            assert http.get("/v1/me").status_code == 200
    else:
        served(sqlite)
        for file in files(sqlite):
            file.unlink()
    if lost == "what is in it":
        sqlite.command("migrate")

    said = refused(sqlite)

    assert f"{folder(sqlite)}/keys-exist says that this server has had API keys" in said
    assert "Restore the database from its backup" in said
    assert bool(files(sqlite)) == (lost == "what is in it"), "no empty one is made in its place"
    shutil.copy(folder(sqlite).with_name("backup") / "warpcall.sqlite3", folder(sqlite))
    with running_server({**sqlite.settings, **SMALL}) as server, client(server, key) as http:
        assert server.get("/v1/me")[0] == 401
        assert http.get("/v1/me").json()["name"] == "alice"


def test_after_a_loss_a_new_key_lets_the_server_start_and_others_stay_out(
    sqlite: Database,
) -> None:
    sqlite.key("alice")
    served(sqlite)
    for file in files(sqlite):
        file.unlink()
    refused(sqlite)

    sqlite.command("users", "add", "bob")
    sqlite.command("keys", "create", "bob")

    served(sqlite)


def test_without_the_marker_a_server_starts_anew_for_everyone_on_this_machine(
    sqlite: Database,
) -> None:
    sqlite.key("alice")
    served(sqlite)
    for file in (*files(sqlite), folder(sqlite) / "keys-exist"):
        file.unlink()

    with running_server({**sqlite.settings, **SMALL}) as server:
        assert server.get("/v1/me")[0] == 200
        assert not (folder(sqlite) / "keys-exist").exists()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_another_database_without_keys_is_refused(
    database: Database, sqlite: Database, tmp_path: Path
) -> None:
    """The marker lies in the data folder, wherever the database is."""
    sqlite.key("alice")
    served(sqlite)
    url = database.settings.get("WARPCALL_DATABASE_URL", f"sqlite:///{tmp_path}/other.sqlite3")

    said = refused(sqlite, WARPCALL_DATABASE_URL=url)

    assert "keys-exist says that this server has had API keys, but the database" in said


def test_the_first_key_of_a_running_server_leaves_the_marker(sqlite: Database) -> None:
    with running_server({**sqlite.settings, **SMALL}) as server:
        assert server.get("/v1/me")[0] == 200
        assert not (folder(sqlite) / "keys-exist").exists()

        sqlite.key("alice")
        until(lambda: (folder(sqlite) / "keys-exist").exists())

        assert "Delete this file only if" in (folder(sqlite) / "keys-exist").read_text()
        until(lambda: server.get("/v1/me")[0] == 401)


def test_a_marker_that_cannot_be_looked_at_may_be_there(sqlite: Database, tmp_path: Path) -> None:
    sqlite.key("alice")
    served(sqlite)
    folder(sqlite).chmod(0)
    there = {**sqlite.settings, "WARPCALL_DATABASE_URL": f"sqlite:///{tmp_path}/other.sqlite3"}

    said = Database("sqlite", there).command("--port=0", status=2, under=UNDER)

    folder(sqlite).chmod(0o700)
    assert "keys-exist may say that this server has had API keys, and cannot be read" in said


def test_a_server_that_requires_keys_does_not_start_without_any(sqlite: Database) -> None:
    """The setting is what is left when the whole data folder is lost before a start."""
    said = refused(sqlite, WARPCALL_REQUIRE_KEYS="true")

    assert "WARPCALL_REQUIRE_KEYS is set and the database has no API key" in said
    sqlite.key("alice")
    with running_server({**sqlite.settings, **SMALL, "WARPCALL_REQUIRE_KEYS": "true"}) as server:
        assert server.get("/v1/me")[0] == 401


def test_the_store_of_a_file_that_was_never_there_says_so(tmp_path: Path) -> None:
    store = Store(None, tmp_path / "none")

    with pytest.raises(StoreError, match="its file cannot be opened"), store.read():
        pass
    store.close()
