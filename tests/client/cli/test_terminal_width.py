"""What the command prints on a terminal of 80 columns fits it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.client.scripted_ops import DECLARED, OpsServer
from warpcall._text import wrap_line

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# Runs several commands, one after the other: a process takes half a second to import what they need.
COMMANDS = """
import json, sys
from warpcall._cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["warpcall", *words]
    try:
        main.main()
    except SystemExit:
        print(flush=True)
        print("end of a command", flush=True)
"""


def printed(*commands: Sequence[str], columns: str = "80") -> list[list[str]]:
    """The lines that each of the commands prints to a terminal."""
    ours, theirs = pty.openpty()
    text = b""
    with OpsServer() as server:
        environment = {**os.environ, "COLUMNS": columns, "WARPCALL_URL": server.url}
        with subprocess.Popen(
            [sys.executable, "-c", COMMANDS, json.dumps(commands)],
            stdout=theirs,
            stderr=theirs,
            env=environment,
        ) as process:
            os.close(theirs)
            with suppress(OSError):  # all is read, and the other end is closed
                while piece := os.read(ours, 4096):
                    text += piece
    os.close(ours)
    assert process.returncode == 0
    *each, rest = ESCAPES.sub("", text.decode()).split("end of a command")
    assert not rest.strip()
    assert len(each) == len(commands)
    return [one.strip().splitlines() for one in each]


def test_no_line_is_longer_than_the_terminal_is_wide() -> None:
    commands = [("ops",), *(("ops", op) for op in DECLARED), ("ops", "pemute"), ("health",)]

    for command, lines in zip(commands, printed(*commands), strict=True):
        assert lines, command
        assert [line for line in lines if len(line) > 80] == [], command


def test_the_list_of_commands_cuts_no_sentence() -> None:
    (lines,) = printed(["--help"])

    assert any("Time an op against other implementations." in line for line in lines)
    assert [line for line in lines if line.startswith("  ") and line.endswith("...")] == []


def test_a_wider_terminal_has_longer_lines() -> None:
    (lines,) = printed(["ops", "conv"], columns="200")

    assert max(map(len, lines)) > 100


def test_words_are_never_cut_and_the_rest_is_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    assert wrap_line("short") == "short"
    assert wrap_line("  a word, and http://host:8000/a-path") == (
        "  a word, and\n    http://host:8000/a-path"
    )
