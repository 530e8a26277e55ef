"""The source of a Python module as it is on the disk: which files it has, and their hash.

The module is not imported for that, so its code does not run in this process.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

MAX_BYTES = 64 << 20  # of the files of one package
MAX_FILES = 10_000


class SourceUnknown(Exception):
    """The source of a module cannot be found or read. The message is for the operator."""


def package_sha256(module: str) -> str:
    """Hash of the names and contents of a module's files, as `package_files` has them.

    Raises:
        SourceUnknown: there is no such module, or it has too many files or bytes.
    """
    folder, files = package_files(module)
    total, nbytes = hashlib.sha256(), 0
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SourceUnknown(f"{file} cannot be read: {error.strerror}") from None
        nbytes += len(content)
        if nbytes > MAX_BYTES:
            raise SourceUnknown(f"the files in {folder} have more than {MAX_BYTES} bytes")
        name = file.relative_to(folder).as_posix()
        total.update(f"{name}\0".encode(errors="surrogateescape"))
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def package_files(module: str) -> tuple[Path, list[Path]]:
    """A folder, and the files in it that may change what a module does.

    For a module in a package these are all files of its outermost package that has an
    `__init__.py`, except compiled Python. For a module that is in no such package they are the
    Python files beside it.

    Raises:
        SourceUnknown: there is no such module, or it has too many files.
    """
    importlib.invalidate_caches()
    specs = []
    for spec in _specs(module):
        if spec.has_location and spec.submodule_search_locations is not None:
            folder = Path(spec.origin or "").parent
            return folder, _all_files(folder)
        specs.append(spec)
    if len(specs) <= module.count(".") or not specs[-1].has_location:
        raise SourceUnknown(f"there is no module {module}")
    folder = Path(specs[-1].origin or "").parent
    return folder, sorted(file for file in folder.glob("*.py") if file.is_file())


def module_file(module: str) -> Path:
    """The file of a module itself.

    Raises:
        SourceUnknown: there is no such module, or it has no Python file.
    """
    importlib.invalidate_caches()
    specs = [*_specs(module)]
    file = Path(specs[-1].origin or "") if len(specs) > module.count(".") else Path()
    if file.suffix != ".py" or not file.is_file():
        raise SourceUnknown(f"there is no Python file of the module {module}")
    return file


def _specs(module: str) -> Iterator[ModuleSpec]:
    """The specs of a module's packages from the outermost one, and then its own."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return
    while spec is not None:
        yield spec
        if not rest or spec.submodule_search_locations is None:
            return
        # With its whole name it would be found only if its package had been imported.
        spec = PathFinder.find_spec(rest.pop(0), [*spec.submodule_search_locations])


def _all_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f != "__pycache__" and not f.startswith(".")]
        files = (Path(parent, name) for name in names if not name.endswith((".pyc", ".pyo")))
        found += (file for file in files if file.is_file())
        if len(found) > MAX_FILES:
            raise SourceUnknown(f"{folder} has more than {MAX_FILES} files")
    return sorted(found)
