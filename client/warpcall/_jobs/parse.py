"""JSON from a server as the types of `warpcall.jobs`, `.implementations` and `.problems`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from warpcall.errors import TransportError

T = TypeVar("T")
NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


class _Unfit(Exception):
    """A value that is not of the type of its field; the message says what it must be."""


def parse(kind: type[T], value: object, what: str) -> T:
    """A JSON value as a dataclass. Fields that the class does not have are ignored, and those that
    have a default may be missing, because an older server does not know them.

    A `Literal` takes any text, because a newer server may have more states than this client knows.

    Args:
        what: names the answer in the error's message, such as "a job".

    Raises:
        TransportError: a field is missing or has another type.
    """
    try:
        parsed: T = _read(kind, value, "")
    except _Unfit as error:
        raise TransportError(f"the server must send {what}: {error}") from None
    return parsed


def _read(hint: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = next(one for one in args if one is not type(None))
        if float in args:  # of int | float: it takes integers, too
            inner = float
        return None if value is None else _read(inner, value, path)
    if origin is list:
        _check(isinstance(value, list), "a list", value, path)
        if any(is_dataclass(one) or get_origin(one) is tuple for one in _members(args[0])):
            return [_read(args[0], one, f"{path}[{i}]") for i, one in enumerate(value)]
        _check(
            set(map(type, value)) <= _scalars(args[0]), f"a list of {_name(args[0])}", value, path
        )
    elif origin is dict:
        _check(isinstance(value, dict), "an object", value, path)
        if args[1] is not Any:
            return {name: _read(args[1], one, f"{path}[{name!r}]") for name, one in value.items()}
    elif origin is tuple:
        fits = isinstance(value, list) and len(value) == len(args)
        _check(fits, f"a list of {len(args)} values", value, path)
        items = zip(args, value, strict=True)
        return tuple(_read(one, item, f"{path}[{i}]") for i, (one, item) in enumerate(items))
    elif is_dataclass(hint):
        _check(isinstance(value, dict), "an object", value, path)
        return _object(hint, value, path)
    elif hint is not Any:
        plain = str if origin is Literal else hint
        _check(type(value) in _scalars(plain), NAMES[plain], value, path)
    return value


def _object(kind: Any, value: Mapping[str, Any], path: str) -> Any:
    hints = _hints(kind)
    required = (
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )
    missing = [name for name in required if name not in value]
    if missing:
        raise _Unfit(f"{_at(path)} must have {missing[0]!r}, got {value!r:.60}")
    return kind(
        **{
            name: _read(hint, value[name], f"{path}.{name}" if path else name)
            for name, hint in hints.items()
            if name in value
        }
    )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _scalars(hint: Any) -> set[type]:
    """The Python types that JSON values of a plain type have. A list's items are checked by them."""
    if hint is Any:
        return {str, int, float, bool, type(None), list, dict}
    if get_origin(hint) in (Union, UnionType):
        return set().union(*map(_scalars, get_args(hint)))
    if get_origin(hint) is dict:
        return {dict}
    return {int, float} if hint is float else {hint}


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _check(fits: bool, wanted: str, value: object, path: str) -> None:
    if not fits:
        raise _Unfit(f"{_at(path)} must be {wanted}, got {value!r:.60}")


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))


def _at(path: str) -> str:
    return path or "it"
