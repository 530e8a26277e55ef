"""`make serve`: a server for oneself, which runs uploads in the sandbox where bubblewrap works."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMANDS = (
    "sudo apt-get install bubblewrap libseccomp2 uidmap",
    "WARPCALL_UPLOADS=trusted make serve",
)


def make_serve(
    folder: Path, *arguments: str, bubblewrap: bool = True, variables: Mapping[str, str] = {}
) -> str:
    """What `make serve` prints with a server that only prints its setting of uploads."""
    programs = {
        "warpcall-server": 'echo "uploads: $WARPCALL_UPLOADS $@"',
        "bwrap": f"exit {0 if bubblewrap else 1}",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    # `make test ARGS=...` hands its own variables to the make that is tested.
    others = ("WARPCALL_", "ARGS", "MAKE", "MFLAGS")
    known = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    return subprocess.run(
        ["make", "-s", "-o", "setup", "serve", f"BIN={folder}", *arguments],
        cwd=ROOT,
        env={**known, "PATH": f"{folder}:{os.environ['PATH']}", **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_uploads_are_on_where_bubblewrap_works(tmp_path: Path) -> None:
    assert make_serve(tmp_path, "ARGS=--port 0") == "uploads: sandboxed --port 0\n"


def test_the_commands_that_turn_them_on_are_printed_where_it_does_not(tmp_path: Path) -> None:
    printed = make_serve(tmp_path, bubblewrap=False)

    assert all(command in printed for command in COMMANDS)
    assert printed.endswith("uploads: sandboxed \n")  # they are on once bubblewrap is installed


@pytest.mark.parametrize("given", ["off", "trusted", "sandboxed"])
def test_a_setting_that_is_given_holds(tmp_path: Path, given: str) -> None:
    printed = make_serve(tmp_path, bubblewrap=False, variables={"WARPCALL_UPLOADS": given})

    assert printed == f"uploads: {given} \n"


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["ARGS=--insecure --host 0.0.0.0"], {}),
        (["ARGS=--calls-only"], {}),
        ([], {"WARPCALL_INSECURE": "true"}),
        ([], {"WARPCALL_DATABASE_URL": "postgresql://db/warpcall"}),
    ],
    ids=str,
)
def test_a_server_that_others_use_has_the_setting_of_its_operator(
    tmp_path: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    printed = make_serve(tmp_path, *arguments, variables=variables)

    assert printed.startswith("uploads:  ") or printed == "uploads: \n"
