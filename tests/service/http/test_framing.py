"""The parser gets the bytes of one request at a time, and never a byte of the next request."""

from __future__ import annotations

import random

import httptools
import pytest

from warpcall_service.http.framing import Framing

HEAD = b"POST /%d HTTP/1.1\r\nHost: x\r\n%b\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BODY = b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n" * 3


class Recorder:
    """Records what the parser reports of each request, and how many requests began in one feed."""

    def __init__(self) -> None:
        self.framing = Framing()
        self.parser = httptools.HttpRequestParser(self)
        self.requests: list[tuple[bytes, bytes]] = []
        self.feeds = self.began = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = self._body = b""

    def receive(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            end = self.framing.cut(data, at)
            assert at < end <= len(data)
            self.feeds, self.began = self.feeds + 1, 0
            done = len(self.requests)
            self.parser.feed_data(data[at:end])
            assert self.began <= 1
            assert len(self.requests) <= done + 1
            if len(self.requests) > done:
                assert self.framing.complete, "the feed ends where the request ends"
            at = end

    def on_message_begin(self) -> None:
        assert self.framing.complete
        self.began += 1
        self._headers, self._url, self._body = [], b"", b""
        self.framing.begin()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.framing.enter_body(self._headers)

    def on_body(self, body: bytes) -> None:
        self._body += body
        self.framing.read(len(body))

    def on_message_complete(self) -> None:
        self.requests.append((self._url, self._body))
        self.framing.end()


def some_requests(draw: random.Random) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Pipelined requests, and what the parser should report of them."""
    data, expected = b"", []
    for number in range(draw.randint(1, 6)):
        body = draw.choice((b"", b"\n" * 50, draw.randbytes(draw.randint(1, 300)), BODY))
        kind = draw.choice(("sized", "chunked", "none"))
        data += draw.choice((b"", b"", b"\r\n", b"\r\n\r\n\r\n"))
        if kind == "sized":
            data += HEAD % (number, b"Content-Length: %d\r\n" % len(body)) + body
        elif kind == "chunked":
            data += HEAD % (number, CHUNKED) + chunked(draw, body)
        else:
            body = b""
            data += HEAD % (number, b"")
        expected.append((b"/%d" % number, body))
    return data, expected


def chunked(draw: random.Random, body: bytes) -> bytes:
    coded, at = b"", 0
    while at < len(body):
        part = body[at : at + draw.randint(1, 100)]
        size = draw.choice((b"%x", b"%X", b"000%x", b"%x;name=value", b"%020x")) % len(part)
        coded += size + b"\r\n" + part + b"\r\n"
        at += len(part)
    return coded + b"0\r\n" + draw.choice((b"", b"A: b\r\nCookie: c\r\n")) + b"\r\n"


@pytest.mark.parametrize("seed", range(200))
def test_requests_are_separated_however_their_bytes_arrive(seed: int) -> None:
    draw = random.Random(seed)
    data, expected = some_requests(draw)
    recorder, at = Recorder(), 0

    while at < len(data):
        end = at + draw.choice((1, 2, 3, 7, 100, len(data)))
        recorder.receive(data[at:end])
        at = end

    assert recorder.requests == expected


def test_a_head_may_be_split_at_every_byte() -> None:
    data = HEAD % (1, b"Content-Length: 4\r\n") + b"abcd" + HEAD % (2, b"")

    for at in range(1, len(data)):
        recorder = Recorder()
        recorder.receive(data[:at])
        recorder.receive(data[at:])

        assert recorder.requests == [(b"/1", b"abcd"), (b"/2", b"")]


@pytest.mark.parametrize(
    "data",
    [
        HEAD % (1, CHUNKED) + b"7530\r\n" + b"\n" * 30_000 + b"\r\n0\r\n\r\n",
        HEAD % (1, CHUNKED) + b"1\r\na\r\n" * 5_000 + b"0\r\n\r\n",
        HEAD % (1, CHUNKED) + b"0\r\n" + b"a:b\r\n" * 5_000 + b"\r\n",
        b"\r\n" * 10_000 + HEAD % (1, b""),
    ],
    ids=["lines", "chunks", "trailers", "empty lines"],
)
def test_the_parser_is_given_much_at_once_whatever_it_is(data: bytes) -> None:
    recorder = Recorder()

    recorder.receive(data + data)

    assert len(recorder.requests) == 2
    assert recorder.feeds < 10
