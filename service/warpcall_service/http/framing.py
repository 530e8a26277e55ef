"""Finds how many of the bytes that were read belong to the current request.

httptools cannot be paused: it parses everything it is given. A read of 32 KiB can hold 1,800 small
requests, and parsing them all makes an object of some KB for each before the first is answered. So
the parser gets one request at a time, and the bytes behind it wait until it is answered.

Only the parser decides what a valid request is. `Framing` follows what the parser reports, and
decides where to cut the bytes. It cannot cut too late: a head ends at an empty line, for which the
parser accepts CRLF only, and lengths are read from the same bytes by the same rules.
"""

from __future__ import annotations

import re

HEAD_END = b"\r\n\r\n"
EMPTY_LINES = b"\r\n"
MAX_LINE = 32  # bytes kept of an unfinished line with a chunk's size, of at most 16 digits

_SIZE = re.compile(rb"[0-9A-Fa-f]+")


class Framing:
    """Follows the requests of one connection, each from its first byte to its last.

    Attributes:
        in_head: whether the next byte belongs to a head.
        complete: whether the last request that began was read to its end.
    """

    def __init__(self) -> None:
        self.in_head = True
        self.complete = True
        self._head_tail = b""  # the last bytes of an unfinished head: two reads may share its end
        self._left: int | None = None  # bytes of the body to come; None if it is chunked
        self._chunk_left = 0  # bytes of the chunk to come, with the CRLF behind it
        self._line = b""  # the beginning of an unfinished line with a chunk's size
        self._in_trailers = False

    @property
    def fresh(self) -> bool:
        """Whether the next byte is the first of a request."""
        return self.in_head and self.complete and not self._head_tail

    @property
    def left(self) -> int:
        """Bytes of the body to come; 0 in a head, and for a chunked body."""
        return 0 if self.in_head else self._left or 0

    def begin(self) -> None:
        """The parser has found the first byte of a request."""
        self.complete = False

    def enter_body(self, headers: list[tuple[bytes, bytes]]) -> None:
        """The parser has found the end of the head; names in `headers` are in lower case."""
        self.in_head = False
        self._head_tail = b""
        self._left = None
        self._chunk_left = 0
        self._line = b""
        self._in_trailers = False
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)

    def read(self, nbytes: int) -> None:
        """The parser has read `nbytes` bytes of the body, not counting the chunks' lines."""
        if self._left is not None:
            self._left -= nbytes

    def end(self) -> None:
        """The parser has found the end of the request."""
        self.in_head = self.complete = True

    def cut(self, data: bytes, at: int) -> int:
        """Return up to where `data` is for the parser now. The parser has the bytes before `at`."""
        if self.in_head or self._in_trailers:
            return self._cut_head(data, at)
        if self._left:
            return min(len(data), at + self._left)
        return self._cut_chunks(data, at)

    def _cut_head(self, data: bytes, at: int) -> int:
        """Return the end of a head, or of trailers: behind an empty line, or the end of `data`."""
        tail, self._head_tail = self._head_tail, b""
        if self.complete and data[at] in EMPTY_LINES:  # empty lines may precede a head
            at = len(data) - len(data[at:].lstrip(EMPTY_LINES))
            if at == len(data):
                return at
        if tail:
            found = (tail + data[at : at + 3]).find(HEAD_END)
            if found >= 0:
                return at + found + len(HEAD_END) - len(tail)
        found = data.find(HEAD_END, at)
        if found >= 0:
            return found + len(HEAD_END)
        self._head_tail = (tail + data[max(at, len(data) - 3) :])[-3:]
        return len(data)

    def _cut_chunks(self, data: bytes, at: int) -> int:
        """Return the end of the line that ends the chunks, or the end of `data`."""
        at += self._chunk_left
        while at < len(data):
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line = (self._line + data[at : at + MAX_LINE])[:MAX_LINE]
                break
            if self._line:
                size = _SIZE.match(self._line + data[at : min(newline, at + MAX_LINE)])
                self._line = b""
            else:
                size = _SIZE.match(data, at)
            at = newline + 1
            nbytes = int(size[0], 16) if size else 0
            if not nbytes:  # the last chunk, or a line that the parser will refuse
                self._in_trailers, self._head_tail, self._chunk_left = True, b"\r\n", 0
                return at
            at += nbytes + 2
        self._chunk_left = max(0, at - len(data))
        return len(data)
