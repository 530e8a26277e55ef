"""The files of an imported problem: they are written next to the source that has them, and imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

MOST_VARIANTS = 8  # folders with other sizes that are kept


class Files:
    """Python files that may import each other.

    Args:
        folder: of the source that has them; it can be written.
        texts: by name, such as "task.py".
    """

    def __init__(self, folder: Path, texts: Mapping[str, str]) -> None:
        self._folder = folder / "imported"
        self._texts = dict(texts)
        self._variants: dict[tuple[tuple[str, int], ...], dict[str, ModuleType]] = {}

    def module(self, name: str, sizes: Mapping[str, int] | None = None) -> ModuleType:
        """The module of a file.

        Args:
            sizes: values of constants that the files assign once at their top level. Each choice of
                values has modules of its own, so that what follows from a constant follows, too.
        """
        key = tuple(sorted((sizes or {}).items()))
        if key not in self._variants:
            if len(self._variants) >= MOST_VARIANTS:
                self._variants.clear()
            self._variants[key] = {}
        found = self._variants[key]
        if name not in found:
            folder = self._write(dict(key))
            sys.path[:] = [str(folder), *(p for p in sys.path if p != str(folder))]
            for other in self._texts:  # those of another choice must not be imported by this one
                sys.modules.pop(_stem(other), None)
            for stem, module in ((_stem(n), m) for n, m in found.items()):
                sys.modules[stem] = module
            found[name] = _imported(folder / name)
        return found[name]

    def _write(self, sizes: Mapping[str, int]) -> Path:
        named = "-".join(f"{name}{value}" for name, value in sizes.items()) or "files"
        folder = self._folder / f"{len(self._variants)}-{named[:80]}"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for name, text in self._texts.items():
                (folder / name).write_text(with_constants(text, sizes))
        return folder


def with_constants(source: str, values: Mapping[str, int]) -> str:
    """A source with other values of integers that its top level assigns, on the same lines."""
    lines = source.splitlines(keepends=True)
    for name, place in integer_constants(source).items():
        if name in values and place.value != values[name]:
            line = lines[place.lineno - 1].encode()
            head, tail = line[: place.col_offset], line[place.end_col_offset :]
            lines[place.lineno - 1] = (head + str(values[name]).encode() + tail).decode()
    return "".join(lines)


def integer_constants(source: str) -> dict[str, ast.Constant]:
    """The names that the top level of a source assigns once, to an integer that is written there."""
    found: dict[str, ast.Constant | None] = {}
    for statement in ast.parse(source).body:
        target: ast.expr | None = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        if isinstance(target, ast.Name):
            assert isinstance(statement, ast.Assign | ast.AnnAssign)
            value = statement.value
            is_integer = isinstance(value, ast.Constant) and type(value.value) is int
            known = is_integer and target.id not in found and value.lineno == value.end_lineno  # type: ignore[union-attr]
            found[target.id] = value if known else None  # type: ignore[assignment]
    return {name: value for name, value in found.items() if value is not None}


def _stem(name: str) -> str:
    return name.removesuffix(".py")


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
