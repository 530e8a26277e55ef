"""Finds the source that an upload sends: a file, a folder, a tarball, a text, or what defines a function."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpcall._core import Core
from warpcall._jobs.cells import needed_part
from warpcall._jobs.names import NAME
from warpcall._jobs.trees import PACKAGE_FILE, find_entry, is_tree, read_tree, send_files, stem_of
from warpcall.errors import InvalidInput, TooLarge
from warpcall.implementations import Language

CUDA_SUFFIX = ".cu"
MAX_SOURCE_BYTES = 256 << 10  # no server takes more, but its own limit may be lower
UNSENDABLE = re.compile(r"[\0\ud800-\udfff]")  # NUL, and what UTF-8 does not have


@dataclass(frozen=True, slots=True)
class Source:
    """Source in Python or CUDA C++, and what is known of the function to time.

    Attributes:
        text: the source of a whole module.
        function: name of the function, if a function was given, or a name of one.
        name: name for the implementation, if a file was given and its name can be one.
        label: how messages name it.
        entry: path of the source among several files; None for a single file.
        files: the content of the other files, by path.
    """

    text: str
    function: str | None = None
    name: str | None = None
    language: Language = "python"
    label: str = "source"
    entry: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


Code = str | os.PathLike[str] | Callable[..., Any] | Source


def source_of(
    code: Code, wanted: str | None = None, *, function: str | None = None, op: str = ""
) -> Source:
    """The source that a path, a text or a function stands for.

    A text with a line end is source; one without is a path. Of a function in a file this is the whole
    file, of one in a notebook the part of its cell that is needed.

    Args:
        wanted: the name that is needed of a cell, if it is not the function's.
        function: name of the function to time. In a folder or a tarball it may be "module.function".
        op: name of the op, which is that of the function by default.

    Raises:
        InvalidInput: the file is not text in UTF-8, or the function's source cannot be found or
            needs what other cells define; or a name is given for a function that is given itself.
        TooLarge: the source has more than 256 KiB.
        OSError: the file cannot be read.
    """
    if isinstance(code, Source):
        return code
    if isinstance(code, str) and "\n" in code:
        return Source(_checked(code, "source"), function)
    if isinstance(code, str | os.PathLike):
        path = Path(code)
        if is_tree(path):
            return _source_of_tree(path, function, op)
        name = path.stem if NAME.fullmatch(path.stem) else None
        language: Language = "cuda" if path.suffix == CUDA_SUFFIX else "python"
        return Source(read_source(path), function, name, language, str(path))
    if function is not None and callable(code):
        raise InvalidInput(
            "function must be absent where the source is given as a function", field="function"
        )
    return _source_of_function(code, wanted)


async def send_source(core: Core, source: Source) -> dict[str, object]:
    """The members of a request that name a source, after its other files have been sent."""
    members: dict[str, object] = {"source": source.text, "function": source.function}
    if source.files:
        members["entry"] = source.entry
        members["files"] = await send_files(core, source.files)
    return members


def _source_of_tree(path: Path, function: str | None, op: str) -> Source:
    files = read_tree(path)
    by_op = op.rpartition("/")[2].partition("@")[0].replace("-", "_")
    entry = find_entry(files, str(path), function, by_op)
    stem, label = stem_of(path), f"{path}/{entry.path}"
    at = entry.path
    if PACKAGE_FILE in files:  # the folder is a package itself
        if not stem.isidentifier():
            raise InvalidInput(
                f"{path} is a package, since it has {PACKAGE_FILE}, so its name must be that of a module, "
                f"got {stem!r:.60}",
                field="files",
            )
        files = {f"{stem}/{one}": content for one, content in files.items()}
        at = f"{stem}/{entry.path}"
    text = _decoded(files.pop(at), label)
    return Source(
        text,
        entry.function,
        stem if NAME.fullmatch(stem) else None,
        "cuda" if at.endswith(CUDA_SUFFIX) else "python",
        label,
        at if files else None,
        files,
    )


def read_source(path: Path) -> str:
    """The text of a file of source.

    Raises:
        InvalidInput: it is not a regular file, or not text in UTF-8.
        TooLarge: it has more than 256 KiB.
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file():  # opening a pipe could wait for ever
        raise InvalidInput(f"{path} must be a file of source", field="source")
    with path.open("rb") as file:
        data = file.read(MAX_SOURCE_BYTES + 1)
    return _decoded(data, str(path))


def _decoded(data: bytes, label: str) -> str:
    _check_size(len(data), label)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{label}, line {line}: source must be UTF-8, got the byte 0x{data[error.start]:02x}",
            field="source",
        ) from None
    return _checked(text, label)


def _source_of_function(given: object, wanted: str | None) -> Source:
    function = inspect.unwrap(given) if callable(given) else given
    if not inspect.isfunction(function):
        raise InvalidInput(
            "source must be a path, a text of several lines or a Python function, "
            f"got {type(given).__name__}",
            field="source",
        )
    name = function.__name__
    if function.__globals__.get(name) is not given:
        raise InvalidInput(
            "function must be defined under its own name at the top level of a file, "
            f"got {function.__qualname__}",
            field="function",
        )
    file = function.__code__.co_filename
    if Path(file).is_file():
        return Source(read_source(Path(file)), name)
    # IPython, and Python itself from 3.13 on, keep the source of what was typed in this cache.
    text = "".join(linecache.getlines(file))
    if not text:
        raise InvalidInput(
            f"the source of {name} cannot be found, because it was not read from a file: "
            "write it to a file and give the path, or give the source as a text",
            field="source",
        )
    part = needed_part(text, wanted or name, function.__globals__)
    return Source(_checked(part, name), name)


def _checked(text: str, label: str) -> str:
    if found := UNSENDABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InvalidInput(
            f"{label}, line {line}: source must not have the character {found[0]!a}",
            field="source",
        )
    _check_size(len(text.encode()), label)
    return text


def _check_size(nbytes: int, label: str) -> None:
    if nbytes > MAX_SOURCE_BYTES:
        raise TooLarge(
            f"{label} must have at most {MAX_SOURCE_BYTES >> 10} KiB of source",
            field="source",
        )
