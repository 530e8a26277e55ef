"""Reads the JSON body of a request that moves no tensors, as a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.params import from_json
from warpcall_service.http.route_io import body_of

M = TypeVar("M", bound=BaseModel)


async def read_model(
    request: Request, model: type[M], limit: int, what: str, check: Callable[[bytes], object]
) -> M:
    """The body of a request as a model.

    Args:
        limit: on the bytes of the body, which messages call `what`.
        check: raises InvalidInput for bodies that the model would accept or could take too long
            over.

    Raises:
        UnsupportedMedia: the body is not JSON.
        TooLarge: the body is longer than `limit`.
        TimedOut: the body came too slowly.
        InvalidInput: the body does not fit the model; the error names the field.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise UnsupportedMedia(
            f"Content-Type must be {JSON}, got {media[:60] or 'none'}", field="content-type"
        )
    body = await body_of(request, limit, what)
    check(body)
    await asyncio.sleep(0)  # the check and the parser may each take some ms
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None


def check_members(body: bytes) -> None:
    """Refuse repeated names, NaN, and anything but an object."""
    from_json(body, "body")


def _refusal(error: ValidationError) -> InvalidInput:
    fault: Mapping[str, Any] = error.errors()[0]
    field = ".".join(map(str, fault["loc"])) or "body"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if isinstance(fault["input"], dict) else f", got {fault['input']!r:.60}"
    return InvalidInput(f"{field}: {message}{got}", field=field)
