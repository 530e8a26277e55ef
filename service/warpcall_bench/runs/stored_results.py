"""Reads results as the database stores them: which numbers they may have, and printable texts.

A result is checked against these bounds when a job's process sends it. Older rows may have other
numbers, such as 1e308. They are read as the nearest number within the bounds, and their row as
`invalid`, so that whatever computes with results can rely on the bounds: quotients and products of
two numbers are finite, and `math.exp` of a margin is, too. Their texts are made printable, so that
no page, export or terminal gets control characters of an upload.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import pydantic_core

from warpcall_service.text import printable

LEAST, MOST = 1e-18, 1e18  # of numbers that are not 0
MOST_US = 1e10  # of a time, whose name ends with "_us": 2.8 hours
MOST_MARGIN = 100.0  # of a log ratio
MAX_COUNT = 1 << 62  # of integers
OUT_OF_BOUNDS = "its stored numbers are out of bounds"
NOT_MEASURED = ("spec",)  # members of a result with numbers of the request


def summary_of(text: str) -> dict[str, Any]:
    """The columns of a row from its summary."""
    return _row(pydantic_core.from_json(text))


def result_of(stored: bytes) -> Mapping[str, Any]:
    """The sampler's whole result of a case."""
    found = pydantic_core.from_json(zlib.decompress(stored))
    limit = found["limit"]
    return {
        **{
            name: one if name in NOT_MEASURED else within_bounds(one, name)
            for name, one in found.items()
            if name not in ("implementations", "limit")
        },
        "limit": None if limit is None else _row(limit),
        "implementations": [_row(one) for one in found["implementations"]],
    }


def within_bounds(value: Any, name: str = "") -> Any:
    """The same data with each number within its bounds, and printable texts.

    Args:
        name: of the member that has the value.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return _bounded(value, _most(name))
    if isinstance(value, list):
        return value if _are_bounded(value, name) else [within_bounds(one, name) for one in value]
    return {key: within_bounds(one, key) for key, one in value.items()}


def _row(found: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row, which is invalid if some were out of bounds."""
    row: dict[str, Any] = within_bounds(found)
    texts = [name for name, value in found.items() if isinstance(value, str)]
    if row == {**found, **{name: row[name] for name in (*texts, "tags")}}:
        return row
    return {**row, "status": "invalid", "error": OUT_OF_BOUNDS, "relative": None}


def _are_bounded(values: list[Any], name: str) -> bool:
    """Whether all numbers of a list of samples are within their bounds; it takes little time."""
    known = [value for value in values if value is not None]
    try:
        return math.isfinite(sum(known)) and min(known) >= LEAST and max(known) <= _most(name)
    except (TypeError, ValueError, OverflowError):  # no numbers, none at all, or too large ones
        return False


def _most(name: str) -> float:
    return MOST_US if name.endswith("_us") else MOST_MARGIN if name == "margin" else MOST


def _bounded(value: float, most: float) -> float:
    if isinstance(value, int):
        return min(max(value, -MAX_COUNT), MAX_COUNT if most == MOST else int(most))
    if math.isnan(value) or value <= 0:
        return 0.0
    return min(max(value, LEAST), most)
