"""Sources for tuning: copies of one source in which constants of the module have other values."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpcall.errors import InvalidInput

MOST_CONSTANTS = 8
CONSTEXPR = "constexpr"  # as in `BLOCK = tl.constexpr(64)`
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Configured:
    """A source, and the values of the constants that it was made with."""

    source: str
    configuration: Mapping[str, Any]


def configured(
    source: str, over: Mapping[str, Sequence[Any]], label: str, most: int
) -> list[Configured]:
    """The sources of all combinations of values.

    A constant is a name that the module assigns once, at its top level, such as `BLOCK = 64` or
    `BLOCK = tl.constexpr(64)`.

    Args:
        over: the values of each constant: numbers, booleans or texts.
        label: how messages name the source.
        most: combinations that are allowed.

    Raises:
        InvalidInput: a name is no such constant, there are too many combinations, or the source is
            not Python.
    """
    if not 0 < len(over) <= MOST_CONSTANTS:
        raise _refused(f"over must have 1 to {MOST_CONSTANTS} constants, got {len(over)}")
    for name, values in over.items():
        if not NAME.fullmatch(name):
            raise _refused(f"over must have names of constants such as BLOCK, got {name!r:.80}")
        if not values or len({repr(value) for value in values}) < len(values):
            raise _refused(f"over: {name} must have different values, got {list(values)!r:.200}")
        if wrong := [v for v in values if not isinstance(v, bool | int | float | str)]:
            raise _refused(
                f"over: {name} must have numbers, booleans or texts, got {wrong[0]!r:.80}"
            )
    count = 1
    for values in over.values():
        count *= len(values)
    if count > most:
        raise _refused(f"over may make {most} configurations, got {count}")
    places = _places(source, over, label)
    return [
        Configured(_replaced(source, places, made), made)
        for chosen in itertools.product(*over.values())
        for made in [dict(zip(over, chosen, strict=True))]
    ]


def _places(source: str, names: Mapping[str, object], label: str) -> dict[str, tuple[int, int]]:
    """Where the value of each constant begins and ends, in bytes of the source in UTF-8."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(f"over: {label} cannot be parsed: {error}"[:300]) from None
    found: dict[str, list[ast.expr]] = {}
    for name, value in _assignments(module):
        found.setdefault(name, []).append(value)
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    places = {}
    for name in names:
        values = found.get(name, [])
        if len(values) != 1:
            known = ", ".join(sorted(one for one, v in found.items() if len(v) == 1)) or "none"
            times = "is not assigned" if not values else f"is assigned {len(values)} times"
            raise _refused(
                f"over: {name} {times} at the top level of {label}; it must be once, such as "
                f"`{name} = 64`. The constants there are: {known[:300]}"
            )
        (value,) = values
        if isinstance(value, ast.Call) and _name_of(value.func) == CONSTEXPR and value.args:
            value = value.args[0]  # Triton's kernels read no other global constants
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        places[name] = (
            lines[value.lineno - 1] + value.col_offset,
            lines[value.end_lineno - 1] + value.end_col_offset,
        )
    return places


def _name_of(function: ast.expr) -> str:
    """The last part of the name of a function that is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that a module assigns at its top level, and the values."""
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value
        elif (
            isinstance(statement, ast.AnnAssign)
            and statement.value is not None
            and isinstance(statement.target, ast.Name)
        ):
            yield statement.target.id, statement.value


def _replaced(source: str, places: Mapping[str, tuple[int, int]], made: Mapping[str, Any]) -> str:
    data = source.encode()
    for name, (begin, end) in sorted(places.items(), key=lambda one: -one[1][0]):
        data = data[:begin] + _literal(made[name]).encode() + data[end:]
    return data.decode()


def _literal(value: Any) -> str:
    """A value as Python writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _refused(message: str) -> InvalidInput:
    return InvalidInput(message, field="over")
