"""What `make` says before it does something that takes long."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_installation_says_what_it_downloads_where_to_and_how_large_it_is() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )

    said = [line for line in done.stdout.splitlines() if line.startswith("echo ")]
    assert "most of it is PyTorch" in said[0]
    assert ".venv" in said[1]
    assert " GB" in said[1]
