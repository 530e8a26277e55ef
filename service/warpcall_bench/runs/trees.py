"""Uploads of several files: a source, and further files beside it in a tree of folders.

The source is the file with the function; `entry` is its path in the tree. An upload of a single file has
no `entry` and no `files`. A process of its own, in the sandbox, gets the content of all files in its
request and writes them to a folder of its own, so that it sees no file of other users.
"""

from __future__ import annotations

import importlib
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import NotRequired, TypedDict

FOLDER = "files"  # of a tree, in the folder of its process
MODULE_SUFFIXES = (".py", ".pyc", ".so")
PACKAGE = "__init__"
PACKAGE_FILE = f"{PACKAGE}.py"
# Modules of these names are what the code around an upload uses.
RESERVED = frozenset(
    [
        "torch",
        "triton",
        "numpy",
        "uploaded",
        "uploaded_problem",
        "warpcall",
        "warpcall_bench",
        "warpcall_kernels",
        "warpcall_service",
    ]
)


class SourceTree(TypedDict):
    """The files of an upload in a message.

    Attributes:
        source: the text of the file with the function.
        entry: path of that file in the tree; absent for a single file.
        files: SHA-256 of each other file, by its path.
        contents: these files in base64, by their SHA-256.
    """

    source: str
    entry: NotRequired[str]
    files: NotRequired[dict[str, str]]
    contents: NotRequired[dict[str, str]]


def mentions(tree: SourceTree, word: str) -> bool:
    """Whether a word is in one of the files of an upload."""
    contents = tree.get("contents", {}).values()
    return word in tree["source"] or any(word.encode() in b64decode(one) for one in contents)


class Shadows(Exception):
    """A file of a tree has the name of a module that the code around an upload uses."""


@dataclass(frozen=True)
class Written:
    """The files of an upload on the disk of a process.

    Attributes:
        file: with the source.
        root: the folder of the tree; None for a single file.
    """

    file: Path
    root: Path | None = None

    @property
    def module(self) -> str:
        """The name under which the source is imported, from the root of its tree."""
        assert self.root is not None
        parts = self.file.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == PACKAGE else parts)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders in which CUDA C++ finds what it includes: that of the source, and the root."""
        if self.root is None:
            return ()
        return tuple(dict.fromkeys((str(self.file.parent), str(self.root))))

    def place(self, filename: str | None, line: int | None) -> str:
        """Where a line is, for a message, such as "line 3: "; empty if it is in none of the files.

        Lines of other files than the source have their path, such as "helpers.py, line 3: ".
        """
        if filename is None or line is None:
            return ""
        if filename == str(self.file):
            return f"line {line}: "
        if self.root is None or not filename.startswith(f"{self.root}/"):
            return ""
        return f"{filename[len(str(self.root)) + 1 :]}, line {line}: "


def write(tree: SourceTree, folder: Path, name: str) -> Written:
    """Write the files of an upload to a folder, which is made if it does not exist.

    Args:
        name: of the file of an upload that is a single file.
    """
    content = tree["source"].encode()
    folder.mkdir(parents=True, exist_ok=True)
    if not tree.get("entry"):
        file = folder / name
        file.write_bytes(content)
        return Written(file)
    root = folder / FOLDER
    contents = tree.get("contents", {})
    files = {path: b64decode(contents[sha]) for path, sha in tree.get("files", {}).items()}
    for path, data in {**files, tree["entry"]: content}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return Written(root / tree["entry"], root)


def import_tree(written: Written) -> ModuleType:
    """Import the source of a tree, from whose root its modules can import each other.

    Raises:
        Shadows: a module at the root has the name of one that is imported already, or another module
            has the name of the source.
    """
    root = written.root
    assert root is not None
    for name in modules_at_root(str(path.relative_to(root)) for path in root.rglob("*")):
        if name in sys.modules:
            raise Shadows(shadowed(name))
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    module = importlib.import_module(written.module)
    if module.__file__ != str(written.file):
        raise Shadows(shadowed(written.module.partition(".")[0]))
    return module


def modules_at_root(paths: Iterable[str]) -> list[str]:
    """The names of the modules and packages at the root of a tree with these files."""
    found = set()
    for path in map(PurePosixPath, paths):
        first, *rest = path.parts
        if rest == [PACKAGE_FILE] or (not rest and path.suffix in MODULE_SUFFIXES):
            found.add(first.partition(".")[0])
    return sorted(found)


def shadowed(name: str) -> str:
    """Why a module may not have a name."""
    return (
        f"a module at the root of the tree may not have the name {name}, because the server's own code or "
        f"Python itself imports a module {name}; rename it"
    )


def identity(entry: str, files: Mapping[str, str]) -> dict[str, object]:
    """What the version of an upload of several files depends on beside its source."""
    return {"entry": entry, "files": dict(sorted(files.items()))}
