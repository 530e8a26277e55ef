"""`warpcall --install-completion`, in a bash with a home folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent


def in_bash(home: Path, command: str) -> str:
    """The output of a command in an interactive bash that has read the home folder's .bashrc.

    A second command keeps bash, which would else become the first one, above it: typer looks there
    for the shell.
    """
    environment = {
        **os.environ,
        "HOME": str(home),
        "SHELL": "/bin/bash",
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "--noprofile", "-ic", f"{command}; exit $?"],
        env=environment,
        cwd=home,
        text=True,
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def completions(home: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = " ".join(words)
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _warpcall_completion warpcall"
    return in_bash(home, f'{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"').split()


@pytest.mark.parametrize("program", ["warpcall", "warpcall-server"])
def test_bash_knows_how_to_complete_once_it_is_installed(program: str, tmp_path: Path) -> None:
    in_bash(tmp_path, f"{program} --install-completion")

    assert program in in_bash(tmp_path, f"complete -p {program}")


def test_commands_are_completed(tmp_path: Path) -> None:
    in_bash(tmp_path, "warpcall --install-completion")

    assert completions(tmp_path, "warpcall", "hea") == ["health"]
    assert completions(tmp_path, "warpcall", "implementations", "en") == ["environment"]
