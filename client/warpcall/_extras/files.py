"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[Any]]:
    """Write a temporary file beside `path`, then rename it. Write directly to a device or pipe."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    final = path.resolve()
    with tempfile.NamedTemporaryFile(
        dir=final.parent, prefix=f".{final.name}.", delete=False
    ) as file:
        try:
            yield file
            file.flush()
            mode = final.stat().st_mode & 0o777 if final.exists() else 0o666 & ~_umask()
            Path(file.name).chmod(mode)
            Path(file.name).replace(final)
        except BaseException:
            Path(file.name).unlink()
            raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
