"""A database that is lost: nothing is promised that it cannot keep, and nobody is let in by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import running_server
from tests.service.databases import Database
from warpcall_service.store.database import Store, StoreError

pytestmark = pytest.mark.slow

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


def test_a_server_for_this_machine_alone_starts_anew_when_its_database_is_lost(
    sqlite: Database,
) -> None:
    sqlite.key("alice")
    served(sqlite)
    for file in files(sqlite):
        file.unlink()

    with running_server({**sqlite.settings, **SMALL}) as server:
        assert server.get("/v1/me")[0] == 200


@pytest.mark.parametrize(
    ("reached", "why"),
    [
        ({"WARPCALL_HOST": "0.0.0.0"}, "0.0.0.0 can be reached by others"),
        ({"WARPCALL_TRUSTED_PROXIES": "127.0.0.1"}, "WARPCALL_TRUSTED_PROXIES names a proxy"),
        ({"WARPCALL_ROOT_PATH": "/lab"}, "WARPCALL_ROOT_PATH says that others"),
    ],
)
def test_a_server_that_others_reach_does_not_start_when_its_keys_are_lost(
    sqlite: Database, reached: dict[str, str], why: str
) -> None:
    sqlite.key("alice")
    with running_server({**sqlite.settings, **SMALL, **reached}) as server:
        assert server.get("/v1/me")[0] == 401
    for file in files(sqlite):
        file.unlink()

    said = refused(sqlite, **reached)

    assert f"warpcall-server: {why}" in said
    assert "no API keys exist to tell them apart; make one" in said
    with running_server(
        {**sqlite.settings, **SMALL, **reached, "WARPCALL_INSECURE": "true"}
    ) as server:
        assert server.get("/v1/me")[0] == 200


def test_a_server_that_requires_keys_does_not_start_without_any(sqlite: Database) -> None:
    """Whatever the address, and although the database may have been lost."""
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
