"""The header `traceparent`: what is valid, and which requests begin at once although it differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from warpcall import wire
from warpcall_service.http.quick import QuickFeed, QuickOwner, Running
from warpcall_service.http.traceparent import checked, tracestate_of

A = b"00-" + b"a1" * 16 + b"-" + b"b2" * 8 + b"-01"
B = b"00-" + b"c3" * 16 + b"-" + b"d4" * 8 + b"-00"
X = bytes(range(24))
HEADER = wire.encode_header(wire.lay_out([wire.TensorInfo("x", "F32", (2, 3))]))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (A, A),
        (b"cc" + A[2:] + b"-more", b"cc" + A[2:]),
        (b"", b""),
        (A[:-1], b""),
        (A + b"0", b""),
        (A + b"-more", b""),
        (b"ff" + A[2:], b""),
        (A.upper(), b""),
        (b"00-" + b"0" * 32 + A[35:], b""),
        (A[:36] + b"0" * 16 + A[52:], b""),
        (b"cc" + A[2:] + b"more", b""),
        (b" " + A, b""),
    ],
)
def test_a_value_is_valid_as_the_standard_says(value: bytes, found: bytes) -> None:
    assert checked(value) == found


def test_a_tracestate_is_joined_and_bounded() -> None:
    fields = [(b"tracestate", b"a=1"), (b"host", b"here"), (b"tracestate", b"b=2")]

    assert tracestate_of(fields) == b"a=1,b=2"
    assert tracestate_of([(b"tracestate", b"a=" + b"1" * 511)]) == b""


class Owner:
    """A connection that takes the next request."""

    takes_request = True


@dataclass
class Answer:
    """Implements `Repeatable`, and keeps what it is given."""

    nbytes: int = len(HEADER) + len(X)
    json_nbytes: int | None = None
    request_id: bytes | None = None
    begun: list[tuple[bytes, bytes]] = field(default_factory=list)
    status: int = 0

    def begin(
        self, feed: QuickFeed, data: memoryview, request_id: bytes, traceparent: bytes
    ) -> Running | None:
        del feed, request_id
        self.begun.append((bytes(data), traceparent))
        return self

    def leave(self) -> None: ...

    def cancel_with(self, problem: object) -> None: ...


def request(*fields: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"Host: localhost", *fields, b"Content-Length: 9"]
    return b"\r\n".join([*lines, b"", b""]) + HEADER + X


def begun(first: bytes, traceparent: bytes | None, *later: bytes) -> list[tuple[bytes, bytes]]:
    """What begins at once after `first` was answered in the ordinary way: bodies and headers."""
    feed, answer = QuickFeed(cast(QuickOwner, Owner())), Answer()
    assert not feed.begin_request(first)
    feed.remember(answer, traceparent)
    for data in later:
        feed.begin_request(data)
    return answer.begun


def test_a_request_begins_at_once_whatever_its_traceparent() -> None:
    first, second = request(b"traceparent: " + A), request(b"traceparent: " + B)

    assert begun(first, A, second, first) == [(X, B), (X, A)]


def test_a_request_without_the_header_is_compared_with_all_its_bytes() -> None:
    assert begun(request(), None, request(), request(b"traceparent: " + A)) == [(X, b"")]


def test_other_bytes_beside_the_header_count() -> None:
    first = request(b"traceparent: " + A, b"tracestate: a=1")

    assert begun(first, A, request(b"traceparent: " + A, b"tracestate: a=2")) == []


@pytest.mark.parametrize(
    "fields",
    [
        [b"traceparent: " + A[:-1] + b"x"],
        [b"Traceparent: " + A],
        [b"traceparent:" + A],
        [b"traceparent: " + A + b"-more"],
        [b"traceparent: " + A, b"traceparent: " + B],
    ],
)
def test_a_header_that_is_written_in_another_way_prepares_nothing(fields: list[bytes]) -> None:
    several = len(fields) > 1
    valid = b"" if several else checked(fields[0].partition(b":")[2].strip())

    assert begun(request(*fields), valid, request(*fields)) == []
