"""Parses the options of an op, which the server's declaration of the op defines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from warpcall._cli.files import UsageError
from warpcall._text import did_you_mean

TRUE = ("true", "yes", "1")
FALSE = ("false", "no", "0")
T = TypeVar("T")
EXAMPLES = {"bool": "", "int": " N", "float": " X", "ints": " N,N,..."}


def parse_arguments(
    declaration: Mapping[str, Any], arguments: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    """Separate files from options, and parse the options' values.

    Raises:
        UsageError: the op has no such option, a required option is missing, or a value is of the
            wrong kind.
    """
    declared = {p["name"]: p for p in declaration["params"]}
    files: list[str] = []
    params: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            files.append(argument)
            continue
        flag, equals, text = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = name.startswith("no_") and declared.get(name[3:], {}).get("kind") == "bool"
        name = name[3:] if negated else name
        if name not in declared or not flag.startswith("--"):
            meant = did_you_mean(flag, [option(p).split()[0] for p in declared.values()])
            raise UsageError(
                f"{declaration['name']} has no option {flag}, {_allowed(declared)}{meant}"
            )
        if declared[name]["kind"] not in EXAMPLES:
            raise UsageError(f"{flag} is of a kind that only a newer warpcall can read")
        if name in params:
            raise UsageError(f"{flag} is given twice")
        kind = declared[name]["kind"]
        if kind == "bool":
            params[name] = _boolean(flag, text if equals else "true") is not negated
        else:
            params[name] = _value(kind, flag, text if equals else _next(flag, rest))
    for name, p in declared.items():
        if p["required"] and name not in params:
            raise UsageError(f"{declaration['name']} needs {option(p)}")
    return files, params


def option(param: Mapping[str, Any]) -> str:
    """A parameter as an option with its values, such as "--dims N,N,..."."""
    return f"--{param['name'].replace('_', '-')}{EXAMPLES.get(param['kind'], ' ...')}"


def size_option(size: Mapping[str, Any]) -> str:
    """A size as an option with its values, such as "--size rows=N"."""
    return f"--size {size['name']}={','.join(size['choices']) or 'N'}"


def _allowed(declared: Mapping[str, Any]) -> str:
    return f"it takes {', '.join(option(p) for p in declared.values()) or 'none'}"


def _next(flag: str, rest: Iterator[str]) -> str:
    argument = next(rest, None)
    if argument is None:
        raise UsageError(f"{flag} needs a value")
    return argument


def _boolean(flag: str, text: str) -> bool:
    if text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    raise UsageError(f"{flag} must be true or false, got {text!r}")


def _value(kind: str, flag: str, text: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return _finite(text)
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        wanted = {"int": "an integer", "float": "a finite number"}.get(kind, "integers such as 1,0")
        raise UsageError(f"{flag} must be {wanted}, got {text!r}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def one_of(flag: str, given: str, allowed: Sequence[T]) -> T:
    """The allowed value that was given for an option.

    Raises:
        UsageError: it is none of them.
    """
    for one in allowed:
        if one == given:
            return one
    meant = did_you_mean(str(given), map(str, allowed))
    raise UsageError(f"{flag} must be one of {', '.join(map(str, allowed))}, got {given!r}{meant}")
