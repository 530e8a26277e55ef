"""Parses the answers of plain HTTP connections with httptools, the parser of Node in C.

h11, which is written in Python, took 0.09 ms for the heads of a call and its answer, more than all
other work of the client; httptools takes 0.01 ms.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import httptools

from warpcall._text import clean
from warpcall._transport.base import MAX_HEADER_CHARACTERS

HEAD_BYTES = 64 << 10  # of one read, and the limit on what a head or a line between chunks has
MAX_INTERIM = 100  # interim answers, such as 103, before the final one


class Malformed(Exception):
    """What arrived is not an answer in HTTP/1.1."""


class AnswerParser:
    """Parses one answer. Interim answers before it are skipped.

    Attributes:
        status: of the final answer; 0 until its head is complete.
        chunked: whether the body comes in chunks.
        continues: whether the interim answer 100 has arrived: the server wants the body.
        keeps_alive: whether the server keeps the connection open.
        complete: whether the answer has ended, as far as its head says where it ends.
        surplus: whether bytes followed the answer, which no request asked for.
    """

    __slots__ = (
        "_fields",
        "_interim",
        "_parser",
        "_pieces",
        "_since",
        "chunked",
        "complete",
        "continues",
        "keeps_alive",
        "status",
        "surplus",
    )

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._fields: dict[str, str] = {}  # by their names in lower case
        self._pieces: list[bytes] = []
        self._interim = 0
        self._since = 0  # bytes since the last one of a body
        self.status = 0
        self.chunked = self.complete = self.continues = self.surplus = False
        self.keeps_alive = True

    def feed(self, data: bytes | memoryview) -> None:
        """Parse the next bytes.

        Raises:
            Malformed: they are not HTTP, or the head or the lines between chunks are too long.
        """
        assert self._parser is not None
        self._since += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise Malformed(str(error)) from None
            self.surplus = True
        if self._interim > MAX_INTERIM:
            raise Malformed(f"more than {MAX_INTERIM} interim answers")
        if self._since > HEAD_BYTES and not self.complete:
            raise Malformed(f"more than {HEAD_BYTES} bytes without an end of a head or a chunk")

    def headers(self) -> Mapping[str, str]:
        """The fields of the final head by their names in lower case: see `printable`."""
        return printable(self._fields)

    def body(self) -> bytes:
        """The bytes of the body that were parsed since the last call of this method."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Drop the parser, which refers to this object, so that no garbage collection is needed."""
        self._parser = None

    # The methods below are called by httptools, while it parses.

    def on_message_begin(self) -> None:
        self.surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # fields after the body are ignored
            self._fields[_lower(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.keeps_alive = self._parser.should_keep_alive()
            self.chunked = "transfer-encoding" in self._fields
            self._since = 0

    def on_body(self, piece: bytes) -> None:
        if not self.complete:
            self._pieces.append(piece)
            self._since = 0

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
        else:
            assert self._parser is not None
            self._interim += 1
            self.continues |= self._parser.get_status_code() == 100
            self._fields.clear()


def header_map(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case. Values that are not printable are escaped."""
    return printable({_lower(name): value.decode("latin-1") for name, value in fields})


def printable(fields: dict[str, str]) -> dict[str, str]:
    """The same headers, with what is not printable in their values escaped."""
    if "".join(fields.values()).isprintable():
        return fields
    return {name: clean(text, MAX_HEADER_CHARACTERS) for name, text in fields.items()}


@functools.lru_cache(256)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()
