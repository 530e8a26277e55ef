"""The administrator's commands: what they do, and what they say to what cannot be."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.server import COMMAND
from tests.service.databases import REVISION, Database, environment
from warpcall import __version__

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_the_commands_and_how_to_install_completion(flag: str, sqlite: Database) -> None:
    shown = sqlite.command(flag)

    for word in ("users", "keys", "--port", "--version", "--install-completion"):
        assert word in shown


def test_the_version_is_printed(sqlite: Database) -> None:
    assert sqlite.command("--version") == f"warpcall-server {__version__}\n"


def test_users_and_keys_from_the_first_to_the_last_day(database: Database) -> None:
    assert database.command("users", "add", "alice") == "added the user alice\n"
    made = database.command("keys", "create", "alice", "--role", "bench", "--expires-in", "90d")
    assert re.fullmatch(r"wc_[0-9a-f]{8}_[\w-]{43}\n", made), (
        "alone on standard output, for scripts"
    )
    name = made[:11]

    (key,) = database.listed("keys", "list")
    assert (key["key"], key["user"], key["role"], key["state"]) == (
        name,
        "alice",
        "bench",
        "active",
    )
    assert made.strip() not in database.command("keys", "list")
    assert [row["keys"] for row in database.listed("users", "list")] == [1]

    database.command("users", "disable", "alice")
    assert [row["state"] for row in database.listed("keys", "list")] == ["user disabled"]
    database.command("users", "enable", "alice")
    assert database.command("keys", "revoke", name) == f"revoked {name} of alice\n"
    assert database.command("keys", "revoke", made.strip()) == f"revoked {name} of alice\n"
    assert [row["state"] for row in database.listed("keys", "list")] == ["revoked"]
    assert [(row["state"], row["keys"]) for row in database.listed("users", "list")] == [
        ("active", 0)
    ]


def test_what_is_printed_for_people_is_a_table(sqlite: Database) -> None:
    sqlite.command("users", "add", "al")
    sqlite.command("users", "add", "benedict")

    lines = sqlite.command("users", "list").splitlines()

    assert [line.split()[:3] for line in lines] == [
        ["user", "state", "keys"],
        ["al", "active", "0"],
        ["benedict", "active", "0"],
    ]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines, ("state", "active", "active"), strict=True)
            }
        )
        == 1
    )


@pytest.mark.parametrize("name", ["", "Alice", "a b", "-a", "é", "a" * 65, "a\n", "a/b", "'; --"])
def test_a_name_that_cannot_be_is_refused(name: str, sqlite: Database) -> None:
    said = sqlite.command("users", "add", "--", name, status=1)

    assert "a user's name must have 1 to 64 of a-z 0-9 . _ @ -" in said
    assert said.count("\n") == 1


def test_what_is_there_already_or_not_at_all_is_said(sqlite: Database) -> None:
    sqlite.command("users", "add", "alice")
    sqlite.command("users", "disable", "alice")

    for words, says in (
        ("users add alice", "there is a user alice already"),
        ("users add local", "there is a user local already"),
        ("users disable bob", "there is no user 'bob'"),
        ("users enable bob", "there is no user 'bob'"),
        ("keys create bob", "there is no user 'bob'"),
        ("keys create alice", "the user alice is disabled"),
        ("keys revoke wc_00000000", "there is no key '00000000'"),
        ("keys list --user bob", "there is no user 'bob'"),
    ):
        assert sqlite.command(*words.split(), status=1).startswith(f"warpcall-server: {says}")


@pytest.mark.parametrize("time", ["0d", "-1d", "90", "1.5d", "d", "101y", "999999999y", "1w", ""])
def test_a_time_that_cannot_be_is_refused(time: str, sqlite: Database) -> None:
    sqlite.key("alice")

    said = sqlite.command("keys", "create", "alice", f"--expires-in={time}", status=1)

    assert f"must be a number with m, h, d or y, at most 100y, got {time!r}" in said
    assert len(sqlite.listed("keys", "list")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["keys", "create", "alice", "--role", "boss"],
        ["usage", "--days", "0"],
        ["--port", "1", "users", "list"],
        ["users", "rename"],
    ],
)
def test_wrong_usage_has_exit_status_2(words: list[str], sqlite: Database) -> None:
    assert sqlite.command(*words, status=2)


def test_migrate_says_what_it_did(database: Database) -> None:
    first, second = database.command("migrate"), database.command("migrate")

    assert first.endswith(f" brought up to schema {REVISION}\n")
    assert second.endswith(f" is already at schema {REVISION}\n")


def test_a_file_may_be_named(tmp_path: Path) -> None:
    named = Database("sqlite", {"WARPCALL_DATABASE_URL": f"sqlite:///{tmp_path}/other/name.db"})

    named.command("users", "add", "alice")

    assert (tmp_path / "other/name.db").stat().st_mode & 0o777 == 0o600


def test_a_user_without_a_home_is_asked_to_name_a_folder() -> None:
    homeless = Database("sqlite", {"WARPCALL_DATA_DIR": "~nobody-at-all/warpcall"})

    said = homeless.command("users", "list", status=1)

    assert said.startswith(
        "warpcall-server: WARPCALL_DATA_DIR must be a folder, got ~nobody-at-all"
    )


@contextmanager
def at_a_terminal(database: Database, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose standard input and error are a terminal, and the other end of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=environment(database.settings),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def test_a_person_is_asked_for_the_role_of_the_first_key(sqlite: Database) -> None:
    sqlite.command("users", "add", "ann")

    with at_a_terminal(sqlite, "keys", "create", "ann") as (process, terminal):
        os.write(terminal, b"root\nupload\n")
        first = process.communicate(timeout=60)[0]
        said = os.read(terminal, 10_000).decode()
    with at_a_terminal(sqlite, "keys", "create", "ann") as (process, _):
        second = process.communicate(timeout=60)[0]

    assert "role of this first key (call, bench, upload, scratch, admin) [admin]" in said
    assert "the role must be call, bench, upload, scratch, admin, got 'root'" in said
    assert re.fullmatch(rb"wc_[0-9a-f]{8}_[\w-]{43}\n", first), "the question is not in the output"
    assert second.startswith(b"wc_")
    roles = [key["role"] for key in sqlite.listed("keys", "list")]  # in any order within a second
    assert sorted(roles) == ["call", "upload"]


def test_a_program_is_not_asked(sqlite: Database) -> None:
    sqlite.command("users", "add", "ann")

    sqlite.command("keys", "create", "ann")

    assert [key["role"] for key in sqlite.listed("keys", "list")] == ["call"]
