"""What a request says of the files of an upload: their paths and hashes, checked before anything else."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.runs.trees import PACKAGE_FILE, RESERVED, modules_at_root, shadowed
from warpcall_bench.uploads.tables import PATH_LENGTH

SHA256 = r"[0-9a-f]{64}"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,99}")  # of a file or a folder
MOST_DEPTH = 8  # folders and the file
SUFFIXES = {"python": ".py", "cuda": ".cu"}
RULE = (
    f"each part has 1 to 100 letters, digits, _, -, ., + and =, and begins with a letter, a digit or _; "
    f"there are at most {MOST_DEPTH} parts with / between them, and {PATH_LENGTH} characters"
)


@dataclass(frozen=True, slots=True)
class Tree:
    """Where a source lies among other files. A single file has no entry and no files.

    Attributes:
        entry: path of the source.
        files: SHA-256 of each other file, by its path.
    """

    entry: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def checked_tree(
    entry: str | None, files: Mapping[str, str] | None, most_files: int, language: str = "python"
) -> Tree:
    """The files of a request. An upload that has only the source is a single file.

    Raises:
        InvalidInput: a path or a hash is wrong, or the paths do not fit together.
        TooLarge: there are too many files.
    """
    if not files:
        return Tree()
    if entry is None:
        raise InvalidInput(
            "entry must be the path of the source among the files, such as kernels/fast.py",
            field="entry",
        )
    if len(files) + 1 > most_files:
        raise TooLarge(
            f"files: an upload may have at most {most_files} files with its source, got "
            f"{len(files) + 1}",
            field="files",
        )
    check_path(entry, "entry")
    suffix = SUFFIXES[language]
    if not entry.endswith(suffix):
        raise InvalidInput(f"entry must end with {suffix}, got {entry!r:.120}", field="entry")
    if language == "python":
        _check_modules(entry)
    _check_hashes(files)
    _check_together([entry, *files])
    for name in modules_at_root([entry, *files]):
        if name in RESERVED or name in sys.stdlib_module_names:
            raise InvalidInput(f"files: {shadowed(name)}", field="files")
    return Tree(entry, dict(files))


def check_folder(files: Mapping[str, str], most_files: int) -> None:
    """Check the paths and hashes of the files of a folder in which a command starts.

    Raises:
        InvalidInput: a path or a hash is wrong, or the paths do not fit together.
        TooLarge: there are too many files.
    """
    if len(files) > most_files:
        raise TooLarge(
            f"files: a scratch run may have at most {most_files} files, got {len(files)}",
            field="files",
        )
    _check_hashes(files)
    _check_together([*files])


def _check_hashes(files: Mapping[str, str]) -> None:
    for path, sha256 in files.items():
        check_path(path, "files")
        if not re.fullmatch(SHA256, sha256):
            raise InvalidInput(
                f"files: the value of {path} must be the SHA-256 of its content as 64 hex digits in "
                f"lower case, got {sha256!r:.80}",
                field="files",
            )


def check_path(path: str, what: str) -> None:
    """Check that a text can be the path of a file.

    Args:
        what: the field that has it.

    Raises:
        InvalidInput: it cannot.
    """
    parts = path.split("/")
    if (
        len(path) > PATH_LENGTH
        or len(parts) > MOST_DEPTH
        or not all(map(NAME.fullmatch, parts))
        or any(part.endswith(".") for part in parts)
    ):
        raise InvalidInput(
            f"{what}: {path!r:.220} cannot be the path of a file: {RULE}", field=what
        )


def _check_modules(entry: str) -> None:
    for part in PurePosixPath(entry).with_suffix("").parts:
        if not part.isidentifier():
            raise InvalidInput(
                f"entry: {entry!r:.120} cannot be imported, because {part!r:.60} cannot be the name of a "
                "module",
                field="entry",
            )
    if entry == PACKAGE_FILE:
        raise InvalidInput(
            f"entry: a package must be a folder of the tree, such as kernels/{PACKAGE_FILE}",
            field="entry",
        )


def _check_together(paths: list[str]) -> None:
    """Refuse two paths that some file system takes for one, and a file that is a folder, too."""
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(path.casefold(), path)
        if other != path or paths.count(path) > 1:
            raise InvalidInput(
                f"files: {path} and {other} are the same path, or differ only in upper and lower case",
                field="files",
            )
    for path in paths:
        for folder in PurePosixPath(path.casefold()).parents:
            if str(folder) in seen:
                raise InvalidInput(
                    f"files: {seen[str(folder)]} is a file, and the folder of {path}", field="files"
                )
