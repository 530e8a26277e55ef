"""The database: made once, brought up to date, whole whatever happens, and clear when it cannot be
used.
"""

from __future__ import annotations

import importlib
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import warpcall_bench
import warpcall_service
from tests.servers import running_server
from tests.service.databases import OLDEST, REVISION, Database, Postgres, new_postgresql
from tests.service.job_requests import BRIEF, client, ended
from tests.service.job_requests import submit as submit_over_http
from tests.service.job_rows import submit
from warpcall.errors import NotFound
from warpcall_bench.jobs.tables import Job
from warpcall_service.auth import usage, users
from warpcall_service.auth.tables import Change, User
from warpcall_service.auth.usage import Amount
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.schema import Base

pytestmark = pytest.mark.slow


def test_the_schema_is_made_once_and_is_what_the_code_expects(database: Database) -> None:
    for package in (warpcall_service, warpcall_bench):
        for file in Path(str(package.__file__)).parent.glob("*/tables.py"):
            importlib.import_module(f"{package.__name__}.{file.parent.name}.tables")
    store = database.store()

    assert [store.migrate(), store.migrate()] == [True, False]

    with store.read() as session:
        # SQLite has one type of integers, whatever size is declared.
        options = {"compare_type": database.kind != "sqlite", "compare_server_default": True}
        context = MigrationContext.configure(session.connection(), opts=options)
        differences = compare_metadata(context, Base.metadata)
    store.close()
    assert differences == []


def test_several_that_migrate_at_once_make_one_schema(database: Database) -> None:
    stores = [database.store() for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Store.migrate, stores))

    assert {store.revision() for store in stores} == {REVISION}
    for store in stores:
        store.close()


def test_a_schema_of_a_newer_server_is_refused_and_left_alone(database: Database) -> None:
    key = database.key("alice")
    database.sql("UPDATE alembic_version SET version_num = '9999'")

    for words in ([], ["migrate"], ["users", "add", "bob"], ["keys", "list"], ["usage"]):
        said = database.command(*words, status=1 if words else 2)

        assert f"has schema 9999, this server knows up to {REVISION}" in said
        assert "password" not in said
    database.sql(f"UPDATE alembic_version SET version_num = '{REVISION}'")
    assert [row["key"] for row in database.listed("keys", "list")] == [key[:11]]


@pytest.mark.parametrize("revision", ["0001", "0014"])
def test_an_older_schema_is_refused_with_what_to_do(database: Database, revision: str) -> None:
    key = database.key("alice")
    database.sql(f"UPDATE alembic_version SET version_num = '{revision}'")

    for words in ([], ["migrate"], ["users", "add", "bob"]):
        said = database.command(*words, status=1 if words else 2)

        assert f"has schema {revision}, this server updates schemas from {OLDEST} on" in said
        assert "start with a new database, or update it first as docs/settings.md says" in said
    database.sql(f"UPDATE alembic_version SET version_num = '{REVISION}'")
    assert [row["key"] for row in database.listed("keys", "list")] == [key[:11]]


def test_the_file_is_its_owners_alone(sqlite: Database) -> None:
    sqlite.key("alice")

    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_nothing_of_a_failed_change_is_kept(database: Database) -> None:
    store = database.store()
    store.migrate()

    def fail() -> None:
        with store.write() as session:
            users.add_user(session, "alice")
            session.flush()
            users.create_key(session, "bob")

    with pytest.raises(NotFound, match="there is no user 'bob'"):
        fail()

    with store.read() as session:
        assert list(session.scalars(sa.select(User))) == []
        assert session.scalars(sa.select(Change.number)).one() == 0
    store.close()


def test_a_damaged_file_is_named(sqlite: Database) -> None:
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    folder.mkdir()
    (folder / "warpcall.sqlite3").write_bytes(b"no database " * 1000)

    assert "warpcall.sqlite3 cannot be read: its file is no SQLite database" in sqlite.command(
        "users", "list", status=1
    )
    assert "is no SQLite database" in sqlite.command(status=2)


def test_a_database_that_is_away_is_named_without_its_password() -> None:
    url = "postgresql://warp:hunter2@127.0.0.1:1/warp?sslpassword=hunter2"
    away = Database("postgresql", {"WARPCALL_DATABASE_URL": url, "WARPCALL_DATA_DIR": "/nowhere"})

    for words, status in (((), 2), (("users", "list"), 1)):
        said = away.command(*words, status=status)

        assert "postgresql://warp:***@127.0.0.1:1/warp cannot be read" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("name", ["a b", "100%", "a?b=c", "a#b", "é"])
def test_any_name_of_a_folder_will_do(name: str, tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path / name)})

    key = database.key("alice")

    assert (tmp_path / name / "warpcall.sqlite3").is_file()
    assert [row["key"] for row in database.listed("keys", "list")] == [key[:11]]


@pytest.mark.parametrize(
    "url",
    [
        "hunter2",
        "postgresql://warp:hunter2@host:port/warp",
        "mysql://warp:hunter2@host/warp",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_url_that_is_none_is_refused_unseen(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="WARPCALL_DATABASE_URL must be like") as caught:
        Store(url, tmp_path)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_a_url_asks_of_postgresql_is_kept(database: Database) -> None:
    url = database.settings["WARPCALL_DATABASE_URL"] + "&options=-csearch_path%3Dother"
    database.sql("CREATE SCHEMA other")

    store = Store(url, Path())
    store.migrate()

    with store.read() as session:
        found = session.connection().exec_driver_sql("SHOW search_path").scalar()
        timeout = session.connection().exec_driver_sql("SHOW statement_timeout").scalar()
    store.close()
    assert (found, timeout) == ("other", "10s")


@pytest.mark.parametrize("option", ["", "&client_encoding=latin1"])
def test_texts_outside_ascii_are_kept_in_a_database_with_the_encoding_sql_ascii(
    option: str, postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path, "SQL_ASCII")
    store = Store(database.settings["WARPCALL_DATABASE_URL"] + option, tmp_path)
    store.migrate()
    note = "größer als 1 µs ☃ 𝄞 " + "é" * 900

    job = submit(store, "alice", note=note)

    with store.read() as session:
        encoding = session.connection().exec_driver_sql("SHOW server_encoding").scalar()
        found = session.scalars(sa.select(Job).where(Job.note == note)).one()
        assert (encoding, found.id, found.note) == ("SQL_ASCII", job, note)
    store.close()


def test_a_server_uses_a_database_with_the_encoding_sql_ascii(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path, "SQL_ASCII")
    key = database.key("alice", "bench")

    with running_server({**database.settings, **BRIEF}) as server, client(server, key) as http:
        job = ended(http, submit_over_http(http, note="größer ☃", tags=["night"]))
        listed = http.get("/v1/jobs?tag=night").json()["jobs"]

    assert (job["state"], job["note"], job["detail"]) == ("succeeded", "größer ☃", "")
    assert [one["id"] for one in listed] == [job["id"]]


def test_usage_adds_up(database: Database) -> None:
    store = database.store()
    store.migrate()

    for page in (
        {("2026-11-20", "alice", "permute"): Amount(1, 1, 3, 4, 5.6)},
        {
            ("2026-11-20", "alice", "permute"): Amount(2, 0, 3, 4, 5.4),
            ("2026-11-21", "bob", ""): Amount(1),
        },
    ):
        with store.write() as session:
            usage.save(session, page)

    with store.read() as session:
        row, other = users.usage(session, "2026-11-20")
        assert (row.requests, row.failures, row.bytes_in, row.bytes_out) == (3, 1, 6, 8)
        assert (row.kernel_us, other.user_name, other.requests) == (11, "bob", 1)
        assert [u.day for u in users.usage(session, "2026-11-21", "bob")] == ["2026-11-21"]
    store.close()
