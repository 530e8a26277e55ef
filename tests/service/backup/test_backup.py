"""`backup` and `restore`: what comes back, while others write, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import running_server
from tests.service.artefacts.kept import Here, keeping
from tests.service.databases import Database, new_postgresql
from tests.service.job_rows import submit
from tests.service.stored import finished
from warpcall_service.auth import users
from warpcall_service.auth.tables import ApiKey
from warpcall_service.backup import databases
from warpcall_service.backup.archive import BackupError
from warpcall_service.store.schema import Base

pytestmark = pytest.mark.slow

CONTENT = b"an artefact" * 1000


@pytest.fixture
def elsewhere(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Database:
    """An empty database of the same kind, with a data folder of its own."""
    folder = tmp_path / "elsewhere"
    if database.kind == "sqlite":
        return Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    return new_postgresql(request.getfixturevalue("postgres"), folder)


@pytest.fixture
def filled(database: Database) -> Iterator[Here]:
    """Users, keys, jobs with results, and artefacts."""
    database.key("ann", "admin")
    store = database.store()
    here = keeping(database, store)
    for number in range(3):
        here.add(finished(store, "ann", cases=2, seed=number), CONTENT + bytes([number]))
    submit(store, "ann")
    yield here
    store.close()


def rows(database: Database) -> dict[str, int]:
    """Number of rows by table, of those that a server which does not run leaves alone."""
    store = database.store()
    with store.read() as session:
        found = {
            name: session.scalars(sa.select(sa.func.count()).select_from(table)).one()
            for name, table in Base.metadata.tables.items()
        }
    store.close()
    return found


def is_empty(database: Database) -> bool:
    store = database.store()
    found = store.exists and store.table_names() != []
    store.close()
    return not found


def files_of(database: Database) -> dict[str, bytes]:
    folder = Path(database.settings["WARPCALL_DATA_DIR"]) / "artefacts"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_rows_and_files_come_back(
    database: Database, elsewhere: Database, filled: Here, tmp_path: Path
) -> None:
    file = tmp_path / "backup"

    said = database.command("backup", str(file))
    done = elsewhere.command("restore", str(file))

    assert said.startswith(f"wrote {file}: ")
    assert "and 3 files" in said
    assert "and 3 files" in done
    assert file.stat().st_mode & 0o777 == 0o600
    assert rows(elsewhere) == rows(database)
    assert rows(elsewhere)["jobs"] == 4
    assert files_of(elsewhere) == files_of(database)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert [key["state"] for key in elsewhere.listed("keys", "list")] == ["active"]


def test_a_server_serves_what_was_restored(
    database: Database, elsewhere: Database, tmp_path: Path
) -> None:
    key, store = database.key("ann", "admin"), database.store()
    here = keeping(database, store)
    job = finished(store, "ann", cases=1)
    here.add(job, CONTENT)
    store.close()
    database.command("backup", str(tmp_path / "backup"))
    elsewhere.command("restore", str(tmp_path / "backup"))

    headers = {"authorization": f"Bearer {key}"}
    with (
        running_server(elsewhere.settings) as server,
        httpx.Client(base_url=server.url, headers=headers) as http,
    ):
        found = http.get(f"/v1/jobs/{job}").json()
        artefact = http.get(f"/v1/jobs/{job}/artefacts/notes.txt")

    assert (found["state"], found["cases_done"]) == ("succeeded", 1)
    assert artefact.content == CONTENT


@contextmanager
def writing(database: Database) -> Iterator[list[int]]:
    """Add users with two keys each, in one transaction, and files with their rows, all the time."""
    stop, written = threading.Event(), [0]
    store = database.store()
    here = keeping(database, store)
    job = finished(store, "load", cases=1)

    def work() -> None:
        number = 0
        while not stop.is_set():
            with store.write() as session:
                users.add_user(session, f"user{number}")
                session.flush()
                for _ in range(2):
                    users.create_key(session, f"user{number}")
            if number % 20 == 0:
                submit(store, f"user{number}")
                here.add(job, CONTENT + os.urandom(8))
            number += 1
            written[0] = number

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()
        store.close()


def test_a_backup_under_load_has_the_state_of_one_moment(
    database: Database, elsewhere: Database, tmp_path: Path
) -> None:
    database.key("ann")
    store = database.store()
    for number in range(20):
        finished(store, "ann", cases=5, rounds=50, seed=number)

    # While somebody reads, SQLite keeps later pages beside the file, where no plain copy has them.
    with store.read() as reader, writing(database) as written:
        reader.execute(sa.select(ApiKey.id)).all()
        while written[0] < 20:
            threading.Event().wait(0.01)
        before = written[0]
        database.command("backup", str(tmp_path / "backup"))
        after = written[0]
    store.close()
    elsewhere.command("restore", str(tmp_path / "backup"))

    restored = elsewhere.store()
    with restored.read() as session:
        keys = session.execute(
            sa.select(ApiKey.user_name, sa.func.count()).group_by(ApiKey.user_name)
        ).all()
    restored.close()
    found = {name: number for name, number in keys if name != "ann"}
    assert set(found.values()) == {2}, "a transaction is in the backup as a whole, or not at all"
    assert before <= len(found) <= after + 1
    assert after > before, "nothing was written meanwhile, so this test has shown nothing"
    restored = elsewhere.store()
    here = keeping(elsewhere, restored)
    assert {row.file for row in here.rows() if row.file} <= here.files()
    restored.close()


def test_a_backup_that_is_cut_off_or_changed_is_refused_and_nothing_is_written(
    database: Database, elsewhere: Database, filled: Here, tmp_path: Path
) -> None:
    good = tmp_path / "good"
    database.command("backup", str(good))
    whole = good.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 3] ^= 1
    broken = {
        "empty": b"",
        "head": whole[:300],
        "half": whole[: len(whole) // 2],
        "without its end": whole[: whole.rindex(b"contents.json")],
        "changed": bytes(changed),
        "text": b"this is no backup\n" * 100,
        "tar": foreign_tar("notes.txt"),
        "outside": foreign_tar("../../outside"),
        "link": foreign_tar("database", tarfile.SYMTYPE),
    }

    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        said = elsewhere.command("restore", str(tmp_path / name), status=1)
        assert "backup" in said or "damaged" in said, (name, said)
        assert str(tmp_path / name) in said

    elsewhere.command("restore", str(tmp_path / "none"), status=1)
    assert not Path(elsewhere.settings["WARPCALL_DATA_DIR"]).exists()
    assert is_empty(elsewhere)
    elsewhere.command("restore", str(good))


def foreign_tar(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        member.size = 4 if kind == tarfile.REGTYPE else 0
        tar.addfile(member, io.BytesIO(b"text"))
    return out.getvalue()


def test_nothing_is_restored_where_something_is(
    database: Database, elsewhere: Database, filled: Here, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    database.command("backup", str(file))
    before = rows(database), files_of(database)

    said = database.command("restore", str(file), status=1)

    assert "exists already" in said or "is not empty" in said
    assert (rows(database), files_of(database)) == before
    artefacts = Path(elsewhere.settings["WARPCALL_DATA_DIR"]) / "artefacts"
    artefacts.mkdir(parents=True)
    (artefacts / ("a" * 32)).touch()
    assert "has files already" in elsewhere.command("restore", str(file), status=1)
    assert [path.name for path in artefacts.iterdir()] == ["a" * 32]
    assert is_empty(elsewhere)


def test_a_backup_never_replaces_a_file(sqlite: Database, tmp_path: Path) -> None:
    sqlite.command("users", "add", "ann")
    (tmp_path / "taken").write_text("mine")

    said = sqlite.command("backup", str(tmp_path / "taken"), status=1)
    sqlite.command("backup", str(tmp_path / "none/file"), status=1)

    assert "exists already" in said
    assert (tmp_path / "taken").read_text() == "mine"


def test_there_is_no_backup_of_nothing(sqlite: Database, tmp_path: Path) -> None:
    assert "there is no database" in sqlite.command("backup", str(tmp_path / "file"), status=1)
    assert not (tmp_path / "file").exists()


def test_a_backup_of_another_kind_or_schema_is_refused(
    database: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database.key("ann")
    database.command("backup", str(tmp_path / "backup"))
    other = new_postgresql(request.getfixturevalue("postgres"), tmp_path / "other")
    if database.kind == "postgresql":
        other = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path / "other")})

    said = other.command("restore", str(tmp_path / "backup"), status=1)
    database.sql("UPDATE alembic_version SET version_num = '9999'")
    newer = database.command("backup", str(tmp_path / "newer"), status=1)

    assert f"has a {database.kind} database" in said
    assert "a newer server has updated it" in newer
    assert not (tmp_path / "newer").exists()


def test_a_missing_program_of_postgresql_is_named(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.kind != "postgresql":
        pytest.skip("SQLite needs no program")
    database.key("ann")
    monkeypatch.setenv("PATH", str(tmp_path))

    said = database.command("backup", str(tmp_path / "file"), status=1)

    assert "pg_dump is not installed" in said
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(("user", "query"), [("ann:se%40cret", ""), ("ann", "&password=se%40cret")])
def test_a_password_is_not_among_the_arguments_of_programs(
    user: str, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "$word" >&2; done\necho "$PGPASSWORD" >&2\nexit 3\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(BackupError) as raised:
        databases.dump_postgresql(
            sa.make_url(f"postgresql://{user}@host/name?sslmode=require{query}"), tmp_path / "out"
        )

    said = str(raised.value)
    assert "status 3" in said
    assert "--dbname=postgresql://ann@host/name?sslmode=require" in said
    assert said.count("se@cret") == 1, "in the environment only"
    assert "se%40cret" not in said


def test_a_backup_on_a_full_disk_leaves_nothing(sqlite: Database, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root may mount a small disk")
    store = sqlite.store()
    store.migrate()
    for number in range(5):
        finished(store, "ann", cases=20, rounds=300, seed=number)
    store.close()
    small = tmp_path / "small"
    small.mkdir()
    script = f'mount -t tmpfs -o size=256k none {small} && {{ "$@"; status=$?; ls -A {small} >&2; exit $status; }}'

    said = sqlite.command(
        "backup", str(small / "file"), status=1, under=["unshare", "-m", "sh", "-c", script, "sh"]
    )

    assert "full" in said
    assert said.count("\n") == 1, "the folder, which is listed at the end, is empty"
