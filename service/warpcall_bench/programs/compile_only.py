"""Prepares a process that compiles Triton kernels and has no GPU. Call it before importing Triton."""

from __future__ import annotations

import os
from pathlib import Path

# With these Triton would interpret kernels, or not compile them, or keep no texts of them.
NOT_FOR_COMPILING = ("TRITON_INTERPRET", "TRITON_CACHE_MANAGER", "TRITON_STORE_BINARY_ONLY")


def drop_variables() -> None:
    """Let Triton compile kernels where the server's environment says otherwise."""
    for variable in NOT_FOR_COMPILING:
        os.environ.pop(variable, None)


def prepare(folder: Path) -> None:
    """Let Triton compile each kernel, and keep what it compiled in a folder of this process."""
    drop_variables()
    # What is compiled then does not depend on paths and line numbers.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
