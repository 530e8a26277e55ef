"""Reads what a browser sends when a form is submitted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from fastapi import Request, Response
from starlette.formparsers import MultiPartException, MultiPartParser

from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall_service.http.route_io import body_of
from warpcall_service.text import brief

PLAIN = "application/x-www-form-urlencoded"
WITH_FILES = "multipart/form-data"
MAX_FORM_BYTES = 256 << 10  # 1,000 cases as JSON take 60 KB, and up to three times that in a form
MAX_FIELDS = 512
LONG_BYTES = 16 << 10  # from here on, a form that is all escapes would stop the event loop for 5 ms
# The parser handles the bytes around each boundary in Python.
MAX_PARTS = 64
CHOICE = {"": None, "yes": True, "no": False}  # of a select whose empty value is the default
TOKEN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form that a browser sent.

    Attributes:
        fields: the texts of each field, with line ends as "\\n"; those of a file as they are in it.
        file_names: of each field with a file that is not empty.
        files: the bytes of these files.
    """

    fields: Mapping[str, list[str]] = field(default_factory=dict)
    file_names: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Form:
        """The form with these names and texts."""
        found: dict[str, list[str]] = {}
        for name, text in pairs:
            found.setdefault(name, []).append(text)
        return cls(found)

    def text(self, name: str) -> str:
        """The text of a field without spaces around it; empty if the field is absent."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """The text of a field as it was typed; empty if the field is absent."""
        return self.fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """The texts of all fields of a name that are not empty, such as those of checkboxes."""
        return [text for text in self.fields.get(name, ()) if text]

    def has(self, name: str) -> bool:
        """Whether a field is there and not empty, such as a checkbox."""
        return bool(self.all(name))

    @property
    def token(self) -> str:
        """What `new_token` gave to this form; empty if it was changed."""
        token = self.text("token")
        return token if TOKEN.fullmatch(token) else ""


async def read_form(
    request: Request,
    limit: int = MAX_FORM_BYTES,
    *,
    kinds: Sequence[str] = (PLAIN, WITH_FILES),
    text_files: bool = True,
) -> Form:
    """The form in the body of a request.

    Args:
        limit: on the bytes of the body.
        kinds: the media types that are read.
        text_files: read files also as texts, into the fields.

    Raises:
        UnsupportedMedia: the body is no form.
        TooLarge: the body is longer than `limit`.
        TimedOut: the body came too slowly.
        InvalidInput: the form cannot be read, or has too many fields.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in kinds:
        raise UnsupportedMedia(
            f"Content-Type must be {' or '.join(kinds)}, got {brief(media) if media else 'none'}",
            field="content-type",
        )
    body = await body_of(request, limit, "the form")
    if media == WITH_FILES:
        return await _with_files(request, body, text_files)
    try:
        if len(body) > LONG_BYTES:
            pairs = await asyncio.to_thread(_pairs, body)
        else:
            pairs = _pairs(body)
    except ValueError:
        raise InvalidInput(
            f"the form must be percent-encoded UTF-8 with at most {MAX_FIELDS} fields", field="body"
        ) from None
    return Form.of((name, _lines(text)) for name, text in pairs)


async def _with_files(request: Request, body: bytes, text_files: bool) -> Form:
    boundary = request.headers["content-type"].partition("boundary=")[2].strip('" ')
    parts = body.count(b"--" + boundary.encode("latin-1")) if boundary else 0
    if parts > MAX_PARTS:
        raise InvalidInput(f"a form with files must have at most {MAX_PARTS} parts", field="body")

    async def whole() -> AsyncIterator[bytes]:
        yield body

    parser = MultiPartParser(
        request.headers,
        whole(),  # type: ignore[arg-type]  # it iterates over it, and does nothing else
        max_files=MAX_PARTS,
        max_fields=MAX_PARTS,
        max_part_size=len(body),
    )
    pairs: list[tuple[str, str]] = []
    file_names: dict[str, str] = {}
    files: dict[str, bytes] = {}
    try:
        found = await parser.parse()
        try:
            for name, value in found.multi_items():
                if isinstance(value, str):
                    pairs.append((name, _lines(value)))
                elif content := await value.read():
                    if text_files:
                        pairs.append((name, content.decode()))
                    files[name] = content
                    file_names[name] = value.filename or ""
        finally:
            await found.close()
    except (MultiPartException, KeyError):
        raise InvalidInput("the form must be multipart/form-data", field="body") from None
    except UnicodeDecodeError:
        raise InvalidInput("files must be texts in UTF-8", field="file") from None
    return Form(Form.of(pairs).fields, file_names, files)


def _pairs(body: bytes) -> list[tuple[str, str]]:
    return parse_qsl(body.decode("ascii"), True, errors="strict", max_num_fields=MAX_FIELDS)


def _lines(text: str) -> str:
    """A text with the line ends that it had in the page; browsers send other ones."""
    return text.replace("\r\n", "\n")


def go_to(location: str, cookie: str = "") -> Response:
    """Send the browser to a page with a GET, so that a reload does not send the form again.

    Args:
        location: relative to the URL of the form, so that it works below any path prefix.
        cookie: the Set-Cookie header; empty if there is none.
    """
    headers = {"location": location, "cache-control": "no-store"}
    if cookie:
        headers["set-cookie"] = cookie
    return Response(status_code=303, headers=headers)
