"""Runs the `warpcall` command in the process of the tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.client.scripted_ops import OpsServer
from warpcall._cli import main

# In a process of its own.
WARPCALL = [sys.executable, "-m", "warpcall"]


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    """Runs `warpcall` in this process with WARPCALL_URL naming `server`.

    An exception other than that of exit fails the test.
    """

    server: OpsServer
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: Any) -> CommandResult:
        self.monkeypatch.setenv("WARPCALL_URL", self.server.url)
        self.monkeypatch.setattr(sys, "argv", ["warpcall", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        assert isinstance(code, int)
        return CommandResult(code, *self.capsys.readouterr())
