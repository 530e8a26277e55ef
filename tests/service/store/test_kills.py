"""A process that is killed at any moment leaves a database that opens, is whole, and has what was
done.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import forks
from tests.service.databases import REVISION, Database, environment
from warpcall_service.auth import users
from warpcall_service.auth.tables import ApiKey, Change, Usage, User
from warpcall_service.auth.users import Snapshot

pytestmark = pytest.mark.slow

KILLS = 4
seeded = random.Random(4)

# Each line that it prints is something that was done: it must be there after the kill.
CREATE_KEYS = """
import sys
from pathlib import Path
from warpcall_service.auth import users
from warpcall_service.store.database import Store
store = Store(sys.argv[1] or None, Path(sys.argv[2]))
while True:
    with store.write() as session:
        key, text = users.create_key(session, "alice")
    print(text, flush=True)
"""
SAVE_USAGE = """
import sys
from pathlib import Path
from warpcall.errors import NotFound
from warpcall_service.auth import usage
from warpcall_service.store.database import Store
store = Store(sys.argv[1] or None, Path(sys.argv[2]))
while True:
    page = {("2026-11-21", "alice", op): usage.Amount(1, 0, 10, 20, 5.0) for op in ("a", "b", "c")}
    with store.write() as session:
        usage.save(session, page)
    print("saved", flush=True)
"""
MIGRATE = """
import sys
from pathlib import Path
from warpcall_service.store.database import Store
print("begun", flush=True)
Store(sys.argv[1] or None, Path(sys.argv[2])).migrate()
"""


# What is done, and what is there afterwards, by the one who does it and is killed after a
# statement.
AFTER_EACH_STATEMENT = """
import json, os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from warpcall_service.auth import tables, usage, users
from warpcall_service.store.database import Store
from warpcall_service.auth.users import Snapshot
DEED, URL, FOLDER = sys.argv[1], sys.argv[2] or None, Path(sys.argv[3])
def do(store):
    if DEED == "migrate":
        store.migrate()
        return
    with store.write() as session:
        if DEED == "create":
            users.create_key(session, "alice")
        elif DEED == "disable":
            users.disable_user(session, "alice")
        else:
            page = {("2026-11-21", "alice", op): usage.Amount(1) for op in ("a", "b", "c")}
            usage.save(session, page)
def state(store):
    if not store.exists or store.revision() is None:
        return None
    with store.read() as session:
        found = users.snapshot(session, Snapshot())
        disabled = session.scalars(sa.select(tables.User.disabled_at)).all()
        requests = [row.requests for row in users.usage(session, "2026-01-01")]
        return [len(found.keys), found.number, any(disabled), requests]
def killed_after(statement):  # in a child: None, or the number of statements if there are fewer
    source, sink = os.pipe()
    if not (child := os.fork()):
        done = 0
        def count(*_):
            nonlocal done
            done += 1
            if done == statement:
                os.kill(os.getpid(), signal.SIGKILL)
        sa.event.listen(sa.Engine, "after_cursor_execute", count)
        sa.event.listen(sa.Engine, "commit", count)
        do(Store(URL, FOLDER))
        os.write(sink, str(done).encode())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    os.close(sink)
    store = Store(URL, FOLDER)
    print(json.dumps([os.waitstatus_to_exitcode(status), state(store)]), flush=True)
    store.close()
    with os.fdopen(source) as said:
        return int(said.read() or 0) or None
def wipe():
    if URL is None:
        for file in FOLDER.iterdir():
            file.unlink()
        return
    store = Store(URL, FOLDER)
    with store.write() as session:
        for statement in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public"):
            session.connection().exec_driver_sql(statement)
    store.close()
# Each child begins anew. What a statement of a migration leaves too early stays until the last ones:
# those are tried as well, but of the others one of eight.
step = 8 if DEED == "migrate" else 1
if number := next(filter(None, map(killed_after, range(1, 1000, step)))):
    if step > 1:
        wipe()
        next(filter(None, map(killed_after, range(number - 4, number + 2))))
"""


@pytest.mark.parametrize(
    ("deed", "before", "after"),
    [
        ("migrate", None, [0, 0, False, []]),
        ("create", [0, 1, False, []], [1, 2, False, []]),
        ("disable", [0, 1, False, []], [0, 2, True, []]),
        ("save", [0, 1, False, []], [0, 1, False, [1, 1, 1]]),
    ],
)
def test_killed_after_any_statement_nothing_is_half_done(
    deed: str, before: object, after: object, database: Database
) -> None:
    if deed != "migrate":
        database.command("users", "add", "alice")
    arguments = [deed, *where(database)]

    program = [sys.executable, "-c", AFTER_EACH_STATEMENT, *arguments]
    done = forks.run(program, environment(database.settings), timeout_s=240)

    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    killed_ones = [state for status, state in found if status == -signal.SIGKILL]
    assert len(killed_ones) >= 3
    assert killed_ones == [before] * len(killed_ones)
    assert [one for one in found if one[0] != -signal.SIGKILL] == [[0, after]] * (
        2 if deed == "migrate" else 1
    )
    assert found[-1] == [0, after]
    whole(database)


def test_a_killed_process_leaves_every_key_that_it_showed(database: Database) -> None:
    database.key("alice")

    shown: list[str] = []
    for _ in range(KILLS):
        shown += killed(CREATE_KEYS, database)

    assert len(shown) > KILLS
    whole(database)
    store = database.store()
    with store.read() as session:
        found = users.snapshot(session, Snapshot())
        number = session.scalars(sa.select(sa.func.count(ApiKey.id))).one()
    store.close()
    assert {key[3:11].encode() for key in shown} <= set(found.keys)
    assert found.number == number + 1, "each key is counted as a change, and alice"


def test_a_killed_process_leaves_usage_whole(database: Database) -> None:
    database.key("alice")

    saved = 0
    for _ in range(KILLS):
        saved += len(killed(SAVE_USAGE, database))

    whole(database)
    store = database.store()
    with store.read() as session:
        rows = users.usage(session, "2026-01-01")
        counts = {(row.requests, row.bytes_in, row.bytes_out, row.kernel_us) for row in rows}
    store.close()
    assert [row.op for row in rows] == ["a", "b", "c"]
    assert len(counts) == 1, "pages are saved whole"
    requests, bytes_in, bytes_out, kernel_us = counts.pop()
    assert saved <= requests <= saved + KILLS
    assert (bytes_in, bytes_out, kernel_us) == (10 * requests, 20 * requests, 5 * requests)


def test_a_killed_migration_is_all_or_nothing(database: Database) -> None:
    states = set()
    for _ in range(KILLS):
        killed(MIGRATE, database, lines=1, seconds=0.25)

        store = database.store()
        states.add(store.revision() if store.exists else None)
        store.migrate()
        whole(database)
        database.key("alice")
        wipe(database)
        store.close()

    assert states <= {None, REVISION}


def killed(program: str, database: Database, *, lines: int = 2, seconds: float = 0.15) -> list[str]:
    """Run a program on the database, kill it some time after its first lines, and return all of them."""
    with forks.Forked(
        [sys.executable, "-c", program, *where(database)],
        env=environment(database.settings),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = "".join(process.stdout.readline() for _ in range(lines))
        time.sleep(seeded.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
    assert first
    return [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]


def whole(database: Database) -> None:
    """Check that it opens, holds together, and is of today's tables."""
    store = database.store()
    assert store.revision() == REVISION
    with store.read() as session:
        if database.kind == "sqlite":
            checked = session.connection().exec_driver_sql("PRAGMA integrity_check").scalar()
            strays = session.connection().exec_driver_sql("PRAGMA foreign_key_check").all()
            assert (checked, strays) == ("ok", [])
        for table in (User, ApiKey, Change, Usage):
            list(session.scalars(sa.select(table)))
    store.close()


def wipe(database: Database) -> None:
    if database.kind == "sqlite":
        for file in Path(database.settings["WARPCALL_DATA_DIR"]).iterdir():
            file.unlink()
    else:
        database.sql("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


def where(database: Database) -> list[str]:
    return [
        database.settings.get("WARPCALL_DATABASE_URL", ""),
        database.settings["WARPCALL_DATA_DIR"],
    ]
