"""Reads the JSON body of a request that moves no tensors, as a model.

Bodies are checked before they are parsed. A parser takes some 200 ns and some 300 bytes of memory for
each value, however short it is: it would hold the event loop for 200 ms while it makes 300,000 empty
lists from half a MB, and a body of few MiB could take seconds and a GiB. The content of texts costs
next to nothing.
"""

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

MAX_STRUCTURE_BYTES = 64 << 10  # of a body without the content of its texts


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


def check_structure(body: bytes) -> None:
    """Refuse a body that a parser would take too long over, and what `check_members` refuses."""
    nbytes = structure_nbytes(body, MAX_STRUCTURE_BYTES)
    if nbytes > MAX_STRUCTURE_BYTES:
        raise InvalidInput(
            f"body must have at most {MAX_STRUCTURE_BYTES} bytes without its texts, got {nbytes}",
            field="body",
        )
    check_members(body)


def structure_nbytes(content: bytes, most: int) -> int:
    """The bytes of JSON without the content of its texts, in time linear in all bytes.

    The content need not be valid JSON. Behind the place where it is not, which is where a parser
    stops, the number is meaningless.

    Args:
        most: for more quotation marks than this, their number is returned, and nothing is split.
    """
    # Escapes are only in texts, so every quotation mark that is left begins or ends a text.
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = plain.count(b'"')
    if quotes > most:
        return quotes
    return quotes + sum(map(len, plain.split(b'"')[::2]))


def _refusal(error: ValidationError) -> InvalidInput:
    fault: Mapping[str, Any] = error.errors()[0]
    field = ".".join(map(str, fault["loc"])) or "body"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if isinstance(fault["input"], dict) else f", got {fault['input']!r:.60}"
    return InvalidInput(f"{field}: {message}{got}", field=field)
