"""The media types of requests and responses, and the choice that an Accept header makes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from python_multipart.multipart import parse_options_header

from warpcall import wire
from warpcall.errors import UnsupportedMedia
from warpcall_service.formats import npy
from warpcall_service.text import brief

Media = Literal["safetensors", "npy", "json", "form"]

MAX_ACCEPT_BYTES = 1024
MAX_RANGES = 32  # of an Accept header; browsers send fewer than ten
MAX_CONTENT_TYPE_BYTES = 256

JSON = "application/json"
FORM = "multipart/form-data"
REQUEST_TYPES: dict[str, Media] = {wire.MEDIA_TYPE: "safetensors", FORM: "form", JSON: "json"}
RESPONSE_TYPES: dict[str, Media] = {
    wire.MEDIA_TYPE: "safetensors",
    npy.MEDIA_TYPE: "npy",
    JSON: "json",
}


@dataclass(frozen=True, slots=True)
class ContentType:
    """The format of a body, and the boundary if it is a form."""

    media: Media
    boundary: bytes = b""


@functools.lru_cache(256)
def content_type(value: bytes | None) -> ContentType:
    """The format that a Content-Type header declares; without the header, none is guessed.

    Raises:
        UnsupportedMedia: there is no Content-Type, or the server does not read this one.
    """
    allowed = ", ".join(REQUEST_TYPES)
    if value is None:
        raise UnsupportedMedia(
            f"the request must have a Content-Type of {allowed}, got none", field="content-type"
        )
    if len(value) > MAX_CONTENT_TYPE_BYTES:
        raise UnsupportedMedia(
            f"the Content-Type must have at most {MAX_CONTENT_TYPE_BYTES} bytes, got {len(value)}",
            field="content-type",
        )
    kind, options = parse_options_header(value)
    text = kind.decode("latin-1")
    media = REQUEST_TYPES.get(text)
    if media is None:
        raise UnsupportedMedia(
            f"the Content-Type must be one of {allowed}, got {brief(text)}; pickles, .pt "
            "and .npz files are never read",
            field="content-type",
        )
    if media != "form":
        return ContentType(media)
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:  # RFC 2046
        raise UnsupportedMedia(
            f"{FORM} must have a boundary of 1 to 70 characters, got {len(boundary)}",
            field="content-type",
        )
    return ContentType(media, boundary)


@functools.lru_cache(256)
def accepted(value: bytes | None) -> Media:
    """The format of the response that an Accept header prefers; without the header, safetensors.

    Raises:
        UnsupportedMedia: the header allows no format of responses, or it is too long.
    """
    if value is None or not value.strip():
        return "safetensors"
    if len(value) > MAX_ACCEPT_BYTES or value.count(b",") >= MAX_RANGES:
        raise UnsupportedMedia(
            f"Accept must have at most {MAX_ACCEPT_BYTES} bytes and {MAX_RANGES} media ranges, "
            f"got {len(value)} and {value.count(b',') + 1}",
            field="accept",
        )
    ranges = [_range(item) for item in value.split(b",") if item.strip()]
    best: tuple[float, int] = (0.0, 0)
    choice: Media | None = None
    for offered, media in RESPONSE_TYPES.items():
        specificity, quality = max(
            ((_fit(wanted, offered), q) for wanted, q in ranges), default=(0, 0.0)
        )
        if specificity and quality and (quality, specificity) > best:
            best, choice = (quality, specificity), media
    if choice is None:
        raise UnsupportedMedia(
            f"the answer can be {', '.join(RESPONSE_TYPES)}, none of which Accept allows: "
            f"{brief(value.decode('latin-1'))}",
            field="accept",
        )
    return choice


def _range(item: bytes) -> tuple[str, float]:
    kind, options = parse_options_header(item)
    try:
        quality = float(options.get(b"q", b"1"))
    except ValueError:
        quality = 0.0
    return kind.decode("latin-1"), quality if 0 <= quality <= 1 else 0.0


def _fit(wanted: str, offered: str) -> int:
    """How specifically a media range matches a media type: 3 by name, 0 not at all."""
    if wanted == offered:
        return 3
    if wanted == offered.partition("/")[0] + "/*":
        return 2
    return 1 if wanted == "*/*" else 0
