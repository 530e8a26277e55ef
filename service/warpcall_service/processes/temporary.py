"""Folders for temporary files of processes that may be killed at any time.

A killed process cannot remove its folder. Each process therefore locks its folder, and the kernel
drops the lock with the process. Whoever calls `sweep` removes the folders that nobody has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "warpcall-files-"


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder for its owner only, removed at the end."""
    sweep()
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _locked(path)
        if lock is not None:
            break  # else another process has just swept it, before it was locked
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders of this account's processes that were killed."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if (lock := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that locks a folder; None if it is gone, locked or not this account's."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own, there = os.fstat(found), path.stat(follow_symlinks=False)
        if (
            own.st_uid == os.geteuid()
            and stat.S_ISDIR(there.st_mode)
            and own.st_ino == there.st_ino
        ):
            return found
    except OSError:
        pass
    os.close(found)
    return None
