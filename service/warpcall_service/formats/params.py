"""Reads an op's parameters: text of a query string or a form, or JSON beside the tensors.

Text is converted to the kind that the op declares (`dims=1,0`, `causal=true`, `scale=0.5`). Names
and ranges are checked later, by the op's declaration in the worker.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote_plus

from warpcall.errors import InvalidInput
from warpcall.wire import json_fault
from warpcall_service.text import brief

Params = dict[str, object]

MAX_PARAMS = 128  # in the query string of a request
MAX_ENTRIES = 64  # of a parameter that is a list
MAX_MEMBERS = 1024  # of one JSON object; a call has at most 256 tensors

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)  # 2^63 has 19 digits
_EXAMPLES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "ints": "integers separated by commas, such as 1,0",
}


def from_query(raw: bytes, op: Mapping[str, Any]) -> Params:
    """The parameters in a query string such as `dims=1,0&causal=true`."""
    return from_text((_decoded(item) for item in raw.split(b"&") if item), op)


def from_text(pairs: Iterable[tuple[str, str]], op: Mapping[str, Any]) -> Params:
    """Convert texts by name to the kinds that `op` declares.

    Raises:
        InvalidInput: a parameter is given twice, or a text is not of its kind.
    """
    kinds = {param["name"]: param["kind"] for param in op["params"]}
    params: Params = {}
    for name, text in pairs:
        _refuse_repeat(name, params)
        params[name] = _convert(name, text, kinds.get(name))
    return params


def from_json(text: str | bytes, field: str, *, constants: bool = False) -> dict[str, Any]:
    """Parse a strict JSON object, in which no name is given twice.

    Args:
        field: names the text in messages.
        constants: allow NaN and Infinity, which are not JSON, and numbers beyond float64 such as
            1e999, which become Infinity.

    Raises:
        InvalidInput: the text is anything else, or has an integer of thousands of digits.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_float=None if constants else _finite,
            parse_constant=None if constants else _refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{field} must be JSON: {json_fault(error)}", field=field) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{field} must be a JSON object, got {brief(value)}", field=field)
    return value


def merge(one: Params, other: Mapping[str, object]) -> Params:
    """Merge two sets of parameters; raises InvalidInput for a name that is in both."""
    for name in other:
        _refuse_repeat(name, one)
    return {**one, **other}


def check_count(query: bytes) -> None:
    """Raise InvalidInput if a query string has more parameters than any route takes."""
    count = query.count(b"&") + 1
    if count > MAX_PARAMS:
        raise InvalidInput(
            f"the query string must have at most {MAX_PARAMS} parameters, got {count}",
            field="query",
        )


def check_entries(name: str, count: int) -> None:
    """Raise InvalidInput if a list parameter has more entries than any op takes."""
    if count > MAX_ENTRIES:
        raise InvalidInput(
            f"{name} must have at most {MAX_ENTRIES} entries, got {count}", field=name
        )


def _decoded(item: bytes) -> tuple[str, str]:
    name, _, value = item.partition(b"=")
    try:
        return (
            unquote_plus(name.decode("ascii"), errors="strict"),
            unquote_plus(value.decode("ascii"), errors="strict"),
        )
    except UnicodeDecodeError:
        raise InvalidInput(
            f"the query string must be percent-encoded UTF-8, got {brief(item)}", field="query"
        ) from None


def _convert(name: str, text: str, kind: str | None) -> object:
    if kind is None:
        return text  # an unknown name, which the op's declaration refuses
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            pass
    if kind == "json":
        return from_json(text, name)
    if kind == "ints":
        check_entries(name, text.count(",") + 1)
        parts = text.split(",") if text else []
        if all(_INTEGER.fullmatch(part) for part in parts):
            return [int(part) for part in parts]
    raise InvalidInput(f"{name} must be {_EXAMPLES[kind]}, got {brief(text)}", field=name)


def _refuse_repeat(name: str, params: Mapping[str, object]) -> None:
    if name in params:
        raise InvalidInput(f"{name} must be given once, it came twice", field=name)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise ValueError(f"an object must have at most {MAX_MEMBERS} members, got {len(pairs)}")
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name is given twice in one object")
    return entries


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise ValueError(
            f"{brief(literal)[1:-1]} is beyond what a float64 can hold; in float data write "
            '"Infinity" as a string'
        )
    return value


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f'{literal} is not JSON; in float data write "{literal}" as a string')
