"""The files of artefacts in a server's data folder. Every function blocks.

A file is complete as soon as it has its final name. A file that no row of the database names is of
no use: it is deleted once it is old enough that nobody can be about to add its row.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = "artefacts"  # in the data folder
PART = ".part"  # the end of the name of a file that is being written
NAME = re.compile(r"[0-9a-f]{32}")
GRACE_S = 600.0  # far longer than it takes to write a file and its row


class ArtefactFiles:
    """The folder of artefacts. Servers that have the same data folder share it.

    Args:
        data_dir: is created when it is needed, with access for its owner only.
    """

    def __init__(self, data_dir: Path) -> None:
        try:
            self._folder = data_dir.expanduser().absolute() / FOLDER
        except RuntimeError:  # the account has no home folder
            self._folder = Path("/nonexistent")

    def write(self, content: bytes) -> str:
        """Write a new file, whole or not at all, and return its name.

        Raises:
            OSError: it cannot be written, for example because the disk is full.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = secrets.token_hex(16)
        part = self._folder / f"{name}{PART}"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123  # of a descriptor
                file.write(content)
                file.flush()
                os.fsync(fd)
            part.rename(self._folder / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return name

    def find(self, name: str) -> tuple[Path, os.stat_result] | None:
        """The path of a file, and its status; None if this server does not have it."""
        path = self._folder / name
        try:
            return path, path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str, most: int) -> tuple[bytes, int] | None:
        """The first `most` bytes of a file, and its size; None if this server does not have it."""
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(most), os.fstat(file.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, *names: str) -> None:
        """Delete files. What cannot be deleted is among `old` again."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()

    def names(self) -> list[str]:
        """The names of all complete files."""
        return [path.name for path in self._paths() if NAME.fullmatch(path.name)]

    def old(self) -> tuple[list[str], int]:
        """The names of all files that are old enough to be deleted if they have no row, and the
        bytes of all files, old or not.
        """
        before, names, nbytes = time.time() - GRACE_S, [], 0
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):  # another server deletes files, too
                found = path.stat(follow_symlinks=False)
                nbytes += found.st_size
                if found.st_mtime < before:
                    names.append(path.name)
        return names, nbytes

    def _paths(self) -> Iterator[Path]:
        """Complete and incomplete files. Others that lie in the folder are not ours."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in self._folder.iterdir():
                if NAME.fullmatch(path.name.removesuffix(PART)):
                    yield path
