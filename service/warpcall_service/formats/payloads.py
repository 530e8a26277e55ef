"""Answers of the types that the SDK declares: made from fields, and written as JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import Response
from pydantic import TypeAdapter

from warpcall_service.formats.media_types import JSON

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


def answered(answer: object, status: int = 200) -> Response:
    """The response of a route: an answer of one of these types as JSON."""
    return Response(to_json(answer), status, media_type=JSON)
