"""What an upload of a verified kernel sends beside its source: its language, and its launches."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpcall._jobs.source import Source, read_source
from warpcall._launches import check_size
from warpcall.errors import InvalidInput
from warpcall.implementations import Language

COMMENT = re.compile(r"/\*\s*warpcall-launches\b")
EXAMPLE = (
    '/* warpcall-launches {"launches": [{"kernel": "scale", "grid": ["cdiv(x.numel, 256)"], '
    '"block": [256], "arguments": ["x", "out", {"i32": "x.numel"}]}]} */'
)


def verified_members(
    source: Source,
    verified: bool,
    language: Language | None,
    launches: Mapping[str, Any] | None,
) -> dict[str, object]:
    """The members `verified`, `language` and `launches` of a request; None for those left out.

    Args:
        verified: whether it was asked for. CUDA C++ and declared launches always are.
        language: None means that of the file.
        launches: in place of those that a comment of CUDA C++ declares.

    Raises:
        InvalidInput: CUDA C++ without a declaration of its launches, or one that is no JSON object.
    """
    language = language or source.language
    if language == "cuda" and launches is None:
        launches = _in_comment(source)
    if launches is not None:
        _check(launches)
    return {
        "verified": True if verified or launches is not None else None,
        "language": "cuda" if language == "cuda" else None,
        "launches": None if launches is None else dict(launches),
    }


def read_launches(path: Path) -> dict[str, Any]:
    """The declaration of launches in a JSON file.

    Raises:
        InvalidInput: it is none.
        TooLarge: the file has more than 256 KiB.
        OSError: it cannot be read.
    """
    return _object(read_source(path), str(path), 0)


def _in_comment(source: Source) -> dict[str, Any]:
    found = _comments(source.text)
    if not found:
        raise InvalidInput(
            f"{source.label} is CUDA C++ and has no declaration of its launches: write it in a "
            f"comment, such as {EXAMPLE}, or give it as a JSON file with --launches, from Python as "
            "`launches`; docs/verified-kernels.md describes it",
            field="launches",
        )
    if len(found) > 1:
        line = source.text.count("\n", 0, found[1][0]) + 1
        raise InvalidInput(
            f"{source.label}, line {line}: there may be one declaration of launches, this is another",
            field="launches",
        )
    begin, end = found[0]
    return _object(source.text[begin:end], source.label, source.text.count("\n", 0, begin))


def _comments(text: str) -> list[tuple[int, int]]:
    """Where the declarations in comments begin and end. The time is linear in the length of the text."""
    found: list[tuple[int, int]] = []
    at = 0
    while (start := COMMENT.search(text, at)) is not None:
        at = text.find("*/", start.end())
        if at < 0:
            break
        found.append((start.end(), at))
    return found


def _object(text: str, label: str, lines_before: int) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{label}, line {lines_before + error.lineno}: the declaration of launches is no JSON: "
            f"{error.msg}",
            field="launches",
        ) from None
    except RecursionError:
        raise InvalidInput(
            f"{label}: the declaration of launches is nested too deeply", field="launches"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{label}: the declaration of launches must be a JSON object", field="launches"
        )
    return value


def _check(launches: object) -> None:
    if not isinstance(launches, Mapping):
        raise InvalidInput(
            f"launches must be a mapping, got {type(launches).__name__}", field="launches"
        )
    try:
        check_size(launches)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"launches: {error}", field="launches") from None
