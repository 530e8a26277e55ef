"""The parser of answers: what it takes for the end of an answer, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import OUT, Script, ScriptedServer, Visit, X, permute, well
from warpcall._body import encode
from warpcall._transport.parser import HEAD_BYTES, AnswerParser, Malformed
from warpcall.errors import TransportError

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def parsed(*pieces: bytes) -> AnswerParser:
    parser = AnswerParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


def test_an_answer_may_come_byte_by_byte() -> None:
    answer = (
        b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + HEAD + b"X-A: \xe9\r\nContent-Length: 3\r\n\r\nabc"
    )

    parser = parsed(*[answer[i : i + 1] for i in range(len(answer))])

    assert (parser.status, parser.complete, parser.surplus) == (200, True, False)
    assert parser.headers() == {"x-a": "é", "content-length": "3"}
    assert parser.body() == b"abc"


def test_fields_after_the_chunks_change_nothing() -> None:
    parser = parsed(CHUNKED, b"3\r\nabc\r\n0\r\nX-Warpcall-Device: other\r\n\r\n")

    assert (parser.complete, parser.body()) == (True, b"abc")
    assert parser.headers() == {"transfer-encoding": "chunked"}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching\r\nUpgrade: other\r\nConnection: upgrade\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: -3\r\n\r\n",
        HEAD + b"X: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        CHUNKED + b"-1\r\n",
    ],
)
def test_a_head_with_two_meanings_is_refused(answer: bytes) -> None:
    with pytest.raises(Malformed):
        parsed(answer)


@pytest.mark.parametrize("begin", [HEAD + b"X: ", CHUNKED + b"0\r\nX: ", CHUNKED + b"3;x="])
def test_a_line_without_end_takes_no_more_memory_than_a_head(begin: bytes) -> None:
    parser = parsed(begin)

    parser.feed(b"y" * (HEAD_BYTES // 2 + 1))

    with pytest.raises(Malformed, match="without an end"):
        parser.feed(b"y" * (HEAD_BYTES // 2 + 1))


@pytest.mark.parametrize("more", [HEAD, b"rubbish"])
def test_a_connection_with_bytes_after_an_answer_is_not_used_again(
    more: bytes, direct: Flavour
) -> None:
    def well_and_more(visit: Visit) -> None:
        visit.body()
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(OUT)
        visit.sock.sendall(head + OUT + more)

    with ScriptedServer(well_and_more, well) as server:
        outs = direct.ask(server, permute, permute, retries=0)

        assert server.connections == 2
    assert all((out == X.T).all() for out in outs)


def lies_about_chunks(visit: Visit) -> None:
    visit.body()
    visit.sock.sendall(CHUNKED + b"%x\r\n" % len(OUT) + OUT + b"no end of a chunk")


def test_what_is_not_http_after_a_head_is_a_transport_error(direct: Flavour) -> None:
    script: Script = lies_about_chunks

    with ScriptedServer(script) as server, pytest.raises(TransportError, match="in HTTP"):
        direct.ask(server, permute, retries=0)


def test_a_small_answer_can_be_written_to(direct: Flavour) -> None:
    with ScriptedServer(well) as server:
        (out,) = direct.ask(server, permute)

    out += 1
    np.testing.assert_array_equal(out, X.T + 1)


def test_headers_that_were_made_before_are_those_of_the_same_call() -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    calls: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"x": x}, {"causal": True}),
        ({"x": x}, {"causal": 1}),
        ({"x": x}, {"causal": 1.0}),
        ({"x": y}, {"causal": True}),
        ({"x": x.astype(np.int32)}, {"causal": True}),
        ({"y": x}, {"causal": True}),
    ]

    first = [encode(*call).joined for call in calls]
    again = [encode(*call).joined for call in calls]

    assert len(set(first)) == len(calls)
    assert first == again
