"""Numbers that a kernel gets have the dtype in the interpreter that they have when it is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.interpreter.scalars import CALLS

ROOT = Path(__file__).parents[3]


def printed(folder: Path, **variables: str) -> list[str]:
    """What the program prints, with an empty cache of compiled kernels."""
    known = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreter.scalars"],
        env={**known, "TRITON_CACHE_DIR": str(folder), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_number_has_the_dtype_of_a_compiled_kernel(tmp_path: Path) -> None:
    compiled = printed(tmp_path)
    interpreted = printed(tmp_path, TRITON_INTERPRET="1")

    assert len(compiled) == 2 * len(CALLS), "a kernel was not compiled anew"
    assert interpreted == compiled
