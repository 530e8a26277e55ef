"""Parsing of requests: uvicorn's parser callbacks, with limits on heads, headers and upgrades.

`Connection` decides what the parser gets, and does what the requests ask for.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from warpcall.errors import Problem
from warpcall_service.http.framing import Framing
from warpcall_service.http.problems import BadRequest, HeadTooLarge

MAX_HEAD_BYTES = 64 << 10
REPORT_S = 10.0  # at most one line about malformed requests is logged in this time
MAX_HEADERS = 128  # of a request; the parser calls a Python function for each

log = logging.getLogger("warpcall.protocol")


class RequestParser(HttpToolsProtocol):
    """Parses one request at a time. Its limits hold for heads and trailers together."""

    _head_nbytes = 0  # of request line, headers and trailers, as the parser reports them
    _silent_nbytes = 0  # given to the parser since it last called one of our methods
    _parsed = False  # whether the parser called one of our methods for the current bytes
    _upgrading = False  # the head asks for another protocol: the parser stops at its end
    _refusal: Problem | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._framing = Framing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsed, self._head_nbytes = True, 0
        self._framing.begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if not self._framing.in_head:
            return  # a trailer, which must not be taken for a header
        if len(self.headers) >= MAX_HEADERS:
            self._refusal = HeadTooLarge(
                f"a request must have at most {MAX_HEADERS} headers", field="headers"
            )
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._parsed = True
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refusal = BadRequest("this server is no proxy, and takes no CONNECT")
                raise self._refusal
            self._upgrading = True
            return
        self._framing.enter_body(self.headers)
        super().on_headers_complete()
        received: dict[Any, Any] = {"warpcall": (self, self.cycle)}  # for the application
        self.scope["extensions"] = received

    def on_body(self, body: bytes) -> None:
        self._parsed = True
        self._framing.read(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._parsed = True
        if not self._upgrading:
            self._framing.end()
            super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        self._parsed = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parse_without_upgrade()
        except httptools.HttpParserError:
            self._refuse(
                self._refusal or BadRequest("the request must be HTTP/1.1, got something else")
            )
        else:
            self._silent_nbytes = 0 if self._parsed else self._silent_nbytes + len(data)
            if self._silent_nbytes > MAX_HEAD_BYTES:
                self._refuse(self._too_large())

    def _parse_without_upgrade(self) -> None:
        """Ignore the Upgrade header, as a server may: a new parser reads the head without it.

        The first parser does not read the body of such a request, so that the body would be taken
        for the next request. Whoever chose the body could send a request that a proxy in front of
        this server forbids.
        """
        self._upgrading = False
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = new_parser(self)
        self._parse(b"\r\n".join((*lines, b"", b"")))

    def _count(self, nbytes: int) -> None:
        self._head_nbytes += nbytes
        if self._head_nbytes > MAX_HEAD_BYTES:
            self._refusal = self._too_large()
            raise self._refusal

    def _too_large(self) -> Problem:
        return HeadTooLarge(
            f"the request line and headers must have at most {MAX_HEAD_BYTES} bytes together",
            field="headers",
        )

    def _refuse(self, problem: Problem) -> None:
        """Answer with `problem`, if the application does not have a request, and close."""
        raise NotImplementedError


def new_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """A new parser with uvicorn's settings."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _Reports:
    """Counts malformed requests, and limits how often they are logged: anyone can send them."""

    def __init__(self) -> None:
        self._unreported = 0
        self._next = 0.0

    def record(self, client: tuple[str, int] | None, problem: Problem) -> None:
        """Log this request with those since the last line, or count it for the next line."""
        self._unreported += 1
        now = time.monotonic()
        if now >= self._next:
            address = client[0] if client else "a Unix socket"
            log.warning(
                "%d malformed requests, the last from %s: %s",
                self._unreported,
                address,
                problem.detail,
            )
            self._unreported, self._next = 0, now + REPORT_S


report = _Reports().record
