"""Type checkers accept calls as users write them, and find what is wrong in others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = Path(__file__).parent / "typed_examples.py"
IGNORE = re.compile(r"  # type: ignore\[.*\]$")
PATHS = ("client", "kernels", "service")

pytestmark = pytest.mark.slow


@pytest.fixture
def wrong_lines(tmp_path: Path) -> tuple[Path, set[int]]:
    """The examples without the comments that ignore errors, and the lines that had one."""
    lines = EXAMPLES.read_text().splitlines()
    path = tmp_path / "typed_examples.py"
    path.write_text("\n".join(IGNORE.sub("", line) for line in lines) + "\n")
    return path, {number for number, line in enumerate(lines, 1) if IGNORE.search(line)}


def test_mypy_finds_the_wrong_calls_and_no_others(wrong_lines: tuple[Path, set[int]]) -> None:
    path, expected = wrong_lines

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--output=json", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {one["line"] for one in found if one["severity"] == "error"} == expected, done.stdout


def test_pyright_finds_the_wrong_calls_and_no_others(wrong_lines: tuple[Path, set[int]]) -> None:
    path, expected = wrong_lines
    settings = {"extraPaths": [str(ROOT / name) for name in PATHS], "typeCheckingMode": "strict"}
    settings |= {"pythonVersion": "3.11", "include": [path.name]}
    (path.parent / "pyrightconfig.json").write_text(json.dumps(settings))

    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert lines == expected, done.stdout
