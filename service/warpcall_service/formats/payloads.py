"""Answers of the types that the SDK declares: made from fields, and written as JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(kind: Callable[..., T], fields: Mapping[str, Any]) -> T:
    """An answer of a type that is based on `warpcall.jobs.Payload`, with its fields checked.

    Raises:
        ValidationError: a field is missing or has another type, or a number is not finite.
    """
    answer: T = _adapter(kind).validate_python(fields)
    return answer


def to_json(answer: object) -> bytes:
    """An answer of one of these types as JSON."""
    kind: Any = type(answer)
    return _adapter(kind).dump_json(answer)
