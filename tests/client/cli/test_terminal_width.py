"""What the command prints on a terminal of 80 columns fits it."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from tests.client.command import WARPCALL
from tests.client.scripted_ops import DECLARED, OpsServer
from warpcall._text import wrap_line

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def printed(*arguments: str, columns: str = "80") -> list[str]:
    """The lines that the command prints to a terminal."""
    ours, theirs = pty.openpty()
    with OpsServer() as server:
        environment = {**os.environ, "COLUMNS": columns, "WARPCALL_URL": server.url}
        subprocess.run(
            [*WARPCALL, *arguments], stdout=theirs, stderr=theirs, env=environment, check=False
        )
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:  # all is read, and the other end is closed
        os.close(ours)
    return ESCAPES.sub("", text.decode()).splitlines()


@pytest.mark.parametrize(
    "arguments", [("ops",), *(("ops", op) for op in DECLARED), ("ops", "pemute"), ("health",)]
)
def test_no_line_is_longer_than_the_terminal_is_wide(arguments: tuple[str, ...]) -> None:
    lines = printed(*arguments)

    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_the_list_of_commands_cuts_no_sentence() -> None:
    lines = printed("--help")

    assert any("Time an op against other implementations." in line for line in lines)
    assert [line for line in lines if line.startswith("  ") and line.endswith("...")] == []


def test_a_wider_terminal_has_longer_lines() -> None:
    assert max(map(len, printed("ops", "conv", columns="200"))) > 100


def test_words_are_never_cut_and_the_rest_is_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    assert wrap_line("short") == "short"
    assert wrap_line("  a word, and http://host:8000/a-path") == (
        "  a word, and\n    http://host:8000/a-path"
    )
