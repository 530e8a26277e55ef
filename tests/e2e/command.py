"""The command `warpcall`, speaking to a real server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from demo.server import Server
from warpcall._cli import main

Warpcall = Callable[..., tuple[int, str, str]]


def command_for(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Warpcall:
    """The command in this process: exit code, stdout and stderr."""
    monkeypatch.setenv("WARPCALL_URL", server.url)

    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["warpcall", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run
