"""Uploads of several files: what a folder or a tarball has, and how it is sent.

The server never reads a tarball. It gets the SHA-256 of each file, and then those that it has not got yet.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from warpcall import wire
from warpcall._core import Core
from warpcall._jobs.parse import parse
from warpcall.errors import InvalidInput, TooLarge
from warpcall.implementations import MissingFiles

MOST_FILES = 1000  # no server takes more, but its own limit may be lower
MOST_BYTES = 8 << 20  # likewise
# A tarball may also have headers, and files that are left out.
MOST_TAR_BYTES = 4 * MOST_BYTES
TARBALLS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PACKAGE_FILE = "__init__.py"
LEFT_OUT = "__pycache__"
COMPILED = ".pyc"
OPENERS: Mapping[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
SHOWN = 8  # modules that an error lists


@dataclass(frozen=True)
class Entry:
    """The file of a tree that has the function.

    Attributes:
        path: in the tree.
        function: its name, if it was given.
    """

    path: str
    function: str | None


def is_tree(path: Path) -> bool:
    """Whether a path is a folder or a tarball."""
    return path.is_dir() or path.name.endswith(TARBALLS)


def stem_of(path: Path) -> str:
    """The name of a folder, or of a tarball without its endings."""
    name = path.resolve().name if path.is_dir() else path.name
    return next((name[: -len(end)] for end in TARBALLS if name.endswith(end)), name)


def read_tree(path: Path) -> dict[str, bytes]:
    """The content of each file of a folder or of a tarball, by its path there.

    Hidden files and folders and compiled Python are left out. If all files of a tarball lie in one
    folder, paths begin there.

    Raises:
        InvalidInput: it has a link or something else that is no file, or no file at all, or is no tarball.
        TooLarge: it has too many files or bytes.
        OSError: it cannot be read.
    """
    found = _read_folder(path) if path.is_dir() else _read_tarball(path)
    if not found:
        raise InvalidInput(f"{path} has no files", field="files")
    return found


def find_entry(files: Mapping[str, bytes], label: str, wanted: str | None, op: str) -> Entry:
    """The file with the function.

    Args:
        label: how messages name the tree.
        wanted: "module.function", or the name of a function, or the path of a file; None for the default.
        op: the name of the function by default.

    Raises:
        InvalidInput: there is no such file, or no default.
    """
    if wanted is None or (wanted not in files and "." not in wanted):
        return Entry(_default(files, label, op), wanted)
    if wanted in files:
        return Entry(wanted, None)
    module, _, function = wanted.rpartition(".")
    base = module.replace(".", "/")
    for path in (f"{base}.py", f"{base}/{PACKAGE_FILE}"):
        if path in files:
            return Entry(path, function)
    raise InvalidInput(
        f"{label} has no module {module}, its modules are: {_modules(files)}", field="function"
    )


def _default(files: Mapping[str, bytes], label: str, op: str) -> str:
    """The module that is meant if none is named: the package itself, the one with the op's name, or the
    only one."""
    for path in (PACKAGE_FILE, f"{op}.py"):
        if files.get(path, b"").strip():  # many packages have an empty __init__.py
            return path
    for suffix in (".py", ".cu"):
        found = [
            path
            for path in files
            if "/" not in path and path.endswith(suffix) and path != PACKAGE_FILE
        ]
        if len(found) == 1:
            return found[0]
    raise InvalidInput(
        f"{label} has several modules, or none that could be meant: name the one with the function, as "
        f"{label}:module.function; its modules are: {_modules(files)}",
        field="function",
    )


def _modules(files: Mapping[str, bytes]) -> str:
    found = sorted(path[:-3].replace("/", ".") for path in files if path.endswith((".py", ".cu")))
    more = f" and {len(found) - SHOWN} others" if len(found) > SHOWN else ""
    return (", ".join(found[:SHOWN]) or "none") + more


class _Gathered:
    """The files that are read, within the limits."""

    def __init__(self, label: Path) -> None:
        self.files: dict[str, bytes] = {}
        self._label = label
        self._nbytes = 0

    def expect(self, nbytes: int) -> None:
        """Check that a further file of this size may be added."""
        if len(self.files) == MOST_FILES:
            raise TooLarge(
                f"{self._label} must have at most {MOST_FILES} files, it has more", field="files"
            )
        if self._nbytes + nbytes > MOST_BYTES:
            raise TooLarge(
                f"{self._label} must have at most {MOST_BYTES >> 20} MiB of files, it has more",
                field="files",
            )

    def add(self, path: str, content: bytes) -> None:
        self.expect(len(content))
        self._nbytes += len(content)
        self.files[path] = content


def _is_left_out(parts: tuple[str, ...]) -> bool:
    hidden = any(part.startswith(".") for part in parts)
    return hidden or LEFT_OUT in parts or (bool(parts) and parts[-1].endswith(COMPILED))


def _no_file(label: Path, path: str, what: str) -> InvalidInput:
    return InvalidInput(
        f"{label}: {path} is {what}, and an upload has files only: replace it by its content, or leave "
        "it out",
        field="files",
    )


def _read_folder(folder: Path) -> dict[str, bytes]:
    found = _Gathered(folder)
    for parent, folders, names in os.walk(folder):
        at = Path(parent).relative_to(folder)
        folders[:] = sorted(one for one in folders if not _is_left_out((one,)))
        for name in [*folders, *sorted(names)]:
            path, shown = Path(parent, name), (at / name).as_posix()
            if _is_left_out((name,)):
                continue
            if path.is_symlink():
                raise _no_file(folder, shown, "a link")
            if path.is_dir():
                continue
            if not path.is_file():  # opening a pipe could wait for ever
                raise _no_file(folder, shown, "no regular file")
            found.expect(path.stat().st_size)
            with path.open("rb") as file:
                found.add(shown, file.read(MOST_BYTES + 1))
    return found.files


class _Bounded(io.RawIOBase):
    """What a tarball contains once it is decompressed, up to MOST_TAR_BYTES."""

    def __init__(self, file: Any, label: Path) -> None:
        self._file = file
        self._left = MOST_TAR_BYTES
        self._label = label

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        content: bytes = self._file.read(min(size if size >= 0 else self._left + 1, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise TooLarge(
                f"{self._label} must have at most {MOST_TAR_BYTES >> 20} MiB when it is decompressed, it "
                "has more",
                field="files",
            )
        return content


def _read_tarball(path: Path) -> dict[str, bytes]:
    found = _Gathered(path)
    try:
        with path.open("rb") as file:
            magic = file.read(8)
            file.seek(0)
            opener = next((OPENERS[one] for one in OPENERS if magic.startswith(one)), None)
            plain = file if opener is None else opener(file)
            with tarfile.open(fileobj=_Bounded(plain, path), mode="r|") as tar:
                for name, content in _members(tar, path, found):
                    if name in found.files:
                        raise InvalidInput(f"{path} has {name} twice", field="files")
                    found.add(name, content)
    except (tarfile.TarError, EOFError, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
        raise InvalidInput(
            f"{path} is no tarball that can be read: {error}", field="files"
        ) from None
    return _below_common_folder(found.files)


def _members(tar: tarfile.TarFile, label: Path, found: _Gathered) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        parts = tuple(part for part in PurePosixPath(member.name).parts if part != ".")
        if member.name.startswith("/") or ".." in parts:
            raise InvalidInput(
                f"{label}: {member.name!r:.200} leads out of the tarball", field="files"
            )
        if not parts or member.isdir() or _is_left_out(parts):
            continue
        shown = "/".join(parts)
        if not member.isreg():
            what = "a link" if member.issym() or member.islnk() else "no regular file"
            raise _no_file(label, shown, what)
        found.expect(member.size)
        content = tar.extractfile(member)
        assert content is not None
        yield shown, content.read()


def _below_common_folder(files: Mapping[str, bytes]) -> dict[str, bytes]:
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1 or any("/" not in path for path in files):
        return dict(files)
    return {path.partition("/")[2]: content for path, content in files.items()}


async def send_files(core: Core, files: Mapping[str, bytes]) -> dict[str, str]:
    """Send the files that the server has not got from this user yet.

    Returns:
        The SHA-256 of each file, by its path.
    """
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    contents = {hashes[path]: content for path, content in files.items()}
    asked = {"sha256": [*contents]}
    payload = await core.request_json("POST", f"{wire.FILES_PATH}/missing", asked)
    for sha256 in parse(MissingFiles, payload, "a list of files").missing:
        if sha256 in contents:
            await core.put_bytes(f"{wire.FILES_PATH}/{sha256}", contents[sha256])
    return hashes
