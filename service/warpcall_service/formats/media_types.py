"""Which formats bodies come and go in, and the choice among them that Accept asks for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from warpcall import wire
from warpcall.errors import UnsupportedMedia
from warpcall_service.formats import npy

Media = Literal["safetensors", "npy", "json", "form"]

MAX_ACCEPT_BYTES = 1024
MAX_RANGES = 32  # of an Accept header; browsers send fewer than ten
MAX_CONTENT_TYPE_BYTES = 256

JSON = "application/json"
FORM = "multipart/form-data"
READ: dict[str, Media] = {wire.MEDIA_TYPE: "safetensors", FORM: "form", JSON: "json"}
WRITTEN: dict[str, Media] = {wire.MEDIA_TYPE: "safetensors", npy.MEDIA_TYPE: "npy", JSON: "json"}


@dataclass(frozen=True, slots=True)
class ContentType:
    """A Content-Type: which media, and the boundary of a form."""

    media: Media
    boundary: bytes = b""


@functools.lru_cache(256)
def content_type(value: bytes | None) -> ContentType:
    """What the body is; never guessed.

    Raises:
        UnsupportedMedia: none given, or one that is not read here.
    """
    allowed = ", ".join(READ)
    if value is None:
        raise UnsupportedMedia(
            f"the request must have a Content-Type of {allowed}, got none", field="content-type"
        )
    if len(value) > MAX_CONTENT_TYPE_BYTES:
        raise UnsupportedMedia(
            f"the Content-Type must have at most {MAX_CONTENT_TYPE_BYTES} bytes, got {len(value)}",
            field="content-type",
        )
    text, _, rest = value.decode("latin-1").partition(";")
    media = READ.get(text.strip().lower())
    if media is None:
        raise UnsupportedMedia(
            f"the Content-Type must be one of {allowed}, got {text.strip()[:60]!r}; pickles, .pt "
            "and .npz files are never read",
            field="content-type",
        )
    if media != "form":
        return ContentType(media)
    boundary = _parameters(rest).get("boundary", "")
    if not 1 <= len(boundary) <= 70:  # RFC 2046
        raise UnsupportedMedia(
            f"{FORM} must have a boundary of 1 to 70 characters, got {len(boundary)}",
            field="content-type",
        )
    return ContentType(media, boundary.encode("latin-1"))


@functools.lru_cache(256)
def accepted(value: bytes | None) -> Media:
    """The format of the answer: the best of an Accept header; safetensors when it leaves it open.

    Raises:
        UnsupportedMedia: an Accept that nothing written here fits, or that is too long.
    """
    if value is None or not value.strip():
        return "safetensors"
    if len(value) > MAX_ACCEPT_BYTES or value.count(b",") >= MAX_RANGES:
        raise UnsupportedMedia(
            f"Accept must have at most {MAX_ACCEPT_BYTES} bytes and {MAX_RANGES} media ranges, "
            f"got {len(value)} and {value.count(b',') + 1}",
            field="accept",
        )
    ranges = [_range(item) for item in value.decode("latin-1").split(",") if item.strip()]
    best: tuple[float, int] = (0.0, 0)
    choice: Media | None = None
    for offered, media in WRITTEN.items():
        specificity, quality = max(
            ((_fit(wanted, offered), q) for wanted, q in ranges), default=(0, 0.0)
        )
        if specificity and quality and (quality, specificity) > best:
            best, choice = (quality, specificity), media
    if choice is None:
        raise UnsupportedMedia(
            f"the answer can be {', '.join(WRITTEN)}, none of which Accept allows: "
            f"{value[:60].decode('latin-1')!r}",
            field="accept",
        )
    return choice


def _range(item: str) -> tuple[str, float]:
    wanted, _, rest = item.partition(";")
    try:
        quality = float(_parameters(rest).get("q", "1"))
    except ValueError:
        quality = 0.0
    return wanted.strip().lower(), quality if 0 <= quality <= 1 else 0.0


def _fit(wanted: str, offered: str) -> int:
    """How specifically a media range names a type: 0 not at all, 3 by name."""
    if wanted == offered:
        return 3
    if wanted == offered.partition("/")[0] + "/*":
        return 2
    return 1 if wanted == "*/*" else 0


def _parameters(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(";") if "=" in item)
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
