"""The command `warpcall`, run in the test's process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.client.scripted_ops import OpsServer
from warpcall import cli


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    """Runs `warpcall` with WARPCALL_URL naming `server`; an exception other than exit fails the test."""

    server: OpsServer
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: Any) -> Said:
        self.monkeypatch.setenv("WARPCALL_URL", self.server.url)
        self.monkeypatch.setattr(sys, "argv", ["warpcall", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert isinstance(code, int)
        return Said(code, *self.capsys.readouterr())
