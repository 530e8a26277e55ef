"""Imports an operator's modules from their sources, and says which sources these were."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from warpcall_bench.runs.sources import SourceUnknown, package_files, package_sha256
from warpcall_kernels import InvalidInput, Op, measuring
from warpcall_kernels.measuring import Implementation
from warpcall_kernels.op.declaration import ParamValue


def load_for_job(modules: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Import modules and register the implementations that a job asks for.

    An implementation that a module does not provide, such as because it cannot be imported, is
    registered, too: it fails in each case with that error.

    Args:
        modules: for each module the names of its implementations that the job times.

    Returns:
        The hash of the source that was loaded, for each name.
    """
    sources: dict[str, str] = {}
    for module, names in modules.items():
        sha256, error = "", None
        try:
            sha256, _ = load(module)
        except BaseException as raised:  # noqa: BLE001  # the operator's code may raise anything
            error = raised
            with contextlib.suppress(SourceUnknown):
                sha256 = package_sha256(module)
        for name in names:
            missing = error or LookupError(f"the module {module} has no implementation {name}")
            with contextlib.suppress(InvalidInput):  # it is registered already
                measuring.register(Implementation(name, "missing", _Failing(missing)))
        sources |= dict.fromkeys(names, sha256)
    return sources


def load(module: str) -> tuple[str, tuple[Implementation, ...]]:
    """Import a module from its source, and register its implementations.

    Returns:
        The hash of the source, and the implementations. If a file was changed meanwhile, the hash
        is one that no source has.

    Raises:
        SourceUnknown: there is no such module.
        BaseException: whatever the module raises.
    """
    before = package_sha256(module)
    folder, _ = package_files(module)
    sys.meta_path.insert(0, _SourceFinder(folder))
    found = measuring.load(module)
    after = package_sha256(module)
    if after != before:
        after = hashlib.sha256(f"{before} changed to {after}".encode()).hexdigest()
    return after, found


class _SourceFinder(importlib.abc.MetaPathFinder):
    """Finds the modules in a folder, and has them compiled from source whatever bytecode there is.

    Python takes bytecode for that of a source if the source's time, in seconds, and size are equal.
    So an edit in the same second could be measured as what it was before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        if not Path(spec.origin).is_relative_to(self._folder):
            return None
        spec.loader = _SourceLoader(fullname, spec.origin)
        return spec


class _SourceLoader(SourceFileLoader):
    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError  # without them, SourceFileLoader neither reads nor writes bytecode


class _Failing:
    """Builds an implementation that could not be loaded: it raises the reason."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._traceback = error.__traceback__

    def __call__(self, op: Op, params: Mapping[str, ParamValue]) -> Any:
        raise self._error.with_traceback(self._traceback)
