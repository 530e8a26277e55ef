"""The sandbox for tests: settings for one, and the mark of tests that need bubblewrap."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from warpcall_service.runs.sandbox import Sandbox
from warpcall_service.settings import Settings

# A developer may lack bubblewrap. Where the variable CI is set, its absence is a failure.
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"),
    reason="bubblewrap is not installed, so the sandbox is not tested: apt install bubblewrap",
)


def sandbox(data_dir: Path, **settings: Any) -> Sandbox:
    """A sandbox whose server has a secret in its data folder."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "secret").write_text("a key")
    return Sandbox(Settings(data_dir=data_dir, uploads="sandboxed", **settings))
