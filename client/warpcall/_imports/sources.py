"""The sources that are uploaded for imported files. They have the files as texts.

The server runs them with `warpcall_kernels.imported`. Nothing of a file is executed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpcall._cli.files import UsageError
from warpcall._jobs.names import NAME

FUNCTION = "compute"  # of an implementation
MOST_NAME = 48


@dataclass(frozen=True)
class Candidate:
    """An implementation to upload.

    Attributes:
        path: of its file.
        name: for the upload, after that of the problem.
        source: what is uploaded.
    """

    path: Path
    name: str
    source: str


@dataclass(frozen=True)
class Imported:
    """What files say, as it is uploaded.

    Attributes:
        path: of the problem, for messages.
        name: for the problem.
        source: of the problem.
        candidates: its implementations.
        assumed: sentences on what the files do not say, or say otherwise.
        tests, benchmarks: sizes of cases that are checked, and of those that are timed. Without
            benchmarks, the default sizes are.
    """

    path: Path
    name: str
    source: str
    candidates: Sequence[Candidate]
    assumed: Sequence[str]
    tests: Sequence[Mapping[str, int]] = field(default=())
    benchmarks: Sequence[Mapping[str, int]] = field(default=())


def problem_source(doc: str, kind: str, files: Mapping[str, str], *arguments: Any) -> str:
    """A problem that `warpcall_kernels.imported` makes of files.

    Args:
        doc: a line that describes it.
        kind: the module that makes it.
        arguments: for its function `problem`, after the folder and the files.
    """
    return (
        f"{_head(doc, kind, files)}\n"
        f"PROBLEM = {kind}.problem({_arguments(arguments)}, module=__name__)\n"
    )  # fmt: skip


def implementation_source(doc: str, kind: str, files: Mapping[str, str], *arguments: Any) -> str:
    """An implementation, likewise; the arguments are for the function `implementation`."""
    return (
        f"{_head(doc, kind, files)}\n"
        f"setup, {FUNCTION} = {kind}.implementation({_arguments(arguments)})\n"
    )  # fmt: skip


def upload_name(path: Path) -> str:
    """The name of an upload that has a file."""
    found = re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem).lstrip("_.-")[:MOST_NAME]
    return found if NAME.fullmatch(found) else "candidate"


def problem_name(stem: str) -> str:
    """The name of a problem, such as "square-matrix" for "1_Square_matrix_"."""
    found = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"^\d+_", "", stem)).strip("-.").lower()
    return found[:MOST_NAME] if NAME.fullmatch(found[:MOST_NAME]) else "problem"


def module_name(path: Path) -> str:
    """The name of a file, by which others import it.

    Raises:
        UsageError: no module can have it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}\.py", path.name):
        raise UsageError(
            f"{path}: the name of an imported file must be letters, digits, _ and -, and .py"
        )
    return path.name


def _head(doc: str, kind: str, files: Mapping[str, str]) -> str:
    texts = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in files.items())
    line = " ".join(doc.split())[:160].replace("\\", "/").replace('"', "'") or "Imported."
    return (
        f'"""{line}"""\n\n'
        "from pathlib import Path\n\n"
        f"from warpcall_kernels.imported import {kind}\n\n"
        f"FILES = {{\n{texts}}}\n"
    )


def _arguments(arguments: Sequence[Any]) -> str:
    return ", ".join(["Path(__file__).parent", "FILES", *map(repr, arguments)])


def _literal(text: str) -> str:
    """A text as it is written in a source; as it is, if that can be."""
    if "'''" not in text and not text.endswith(("'", "\\")) and text.isascii() and "\r" not in text:
        return f"r'''{text}'''"
    lines = "\n".join(f"        {line!a}" for line in text.splitlines(keepends=True))
    return f"(\n{lines}\n    )" if lines else "''"
