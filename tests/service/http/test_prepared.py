"""Which requests have the prepared answer of another: only those that the parser reads alike."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oip.requests import LENGTH, X, binary
from warpcall.errors import InvalidInput
from warpcall_service.formats.oip_request import InferRequest, decode_request
from warpcall_service.http.prepared import MAX_HEADER_BYTES, MAX_PREPARED, PreparedRequests

REQUEST = {"inputs": [binary("x", X)], "parameters": {"dims": "1,0", "binary_data_output": True}}
PIECES = [
    '"id"',
    '"id":"',
    '","',
    '"',
    "\\",
    "\\u0069d",
    "{",
    "}",
    ":",
    ",",
    " ",
    "\n",
    "id",
    "a",
    "é",
    "\x7f",
]
EXAMPLES = settings(max_examples=300, deadline=None, derandomize=True)


@dataclass
class Answer:
    """Implements `Prepared`."""

    nbytes: int
    json_nbytes: int | None
    request_id: bytes | None
    request: InferRequest


def whole(text: bytes) -> bytes:
    """A request with this JSON."""
    nbytes = len(text) + X.nbytes
    head = f"POST / HTTP/1.1\r\n{LENGTH}: {len(text)}\r\nContent-Length: {nbytes}\r\n\r\n"
    return head.encode() + text + X.tobytes()


def decoded(text: bytes) -> InferRequest | None:
    try:
        return decode_request(text)
    except InvalidInput:
        return None


def answer_of(text: bytes) -> Answer:
    """What the application prepares when it has answered a request with this JSON."""
    request = decode_request(text)
    request_id = None if request.id is None else request.id.encode(errors="replace")
    return Answer(len(text) + X.nbytes, len(text), request_id, request)


def check_alike(texts: list[bytes], prepared: int | None = None) -> int:
    """Prepare each valid text; check what is found for all. Returns how many others were found.

    Args:
        prepared: only so many of the first are prepared.
    """
    found_others = 0
    for text in texts[:prepared]:
        if decoded(text) is None:
            continue
        requests: PreparedRequests[Answer] = PreparedRequests()
        requests.add(whole(text), answer_of(text))
        for other in texts:
            found = requests.find(whole(other))
            if found is None:
                continue
            read = decoded(other)
            assert read is not None, other
            assert whole(other)[found.begin :] == X.tobytes()
            if read.id is None:
                assert found.request_id == b""
                assert read == found.prepared.request
            else:
                assert found.request_id == read.id.encode()
                assert read == replace(found.prepared.request, id=read.id)
            found_others += other != text
    return found_others


texts_of_ids = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@st.composite
def similar_texts(draw: st.DrawFn) -> list[bytes]:
    """JSON of requests, some of it wrong, that differ in ids, in order, in space or in some bytes."""
    space = draw(st.sampled_from(["", " ", "\n"]))
    rest = json.dumps(REQUEST, separators=(",", ":"))[1:]
    forms = [
        lambda one: f'{{"id":"{one}",{rest}',
        lambda one: f'{{{space}"id"{space}:{space}"{one}"{space},{rest}',
        lambda one: f'{{{rest[:-1]},"id":"{one}"}}',
        lambda one: f'{{"id":"a","id":"{one}",{rest}',
        lambda one: f'{{"id":"{one}","model_name":"id",{rest}',
        lambda one: f'{{"model_name":"{one}","id":"b",{rest}',
    ]
    form = draw(st.sampled_from(forms))
    texts = [form(draw(texts_of_ids)).encode() for _ in range(draw(st.integers(2, 4)))]
    for text in list(texts):
        changed = bytearray(text)
        at = draw(st.integers(0, len(changed) - 1))
        changed[at] = draw(st.sampled_from(b'"\\:,{} ai\xc3\x00'))
        texts.append(bytes(changed))
    return texts


@EXAMPLES
@given(similar_texts())
def test_what_is_found_is_read_alike(texts: list[bytes]) -> None:
    check_alike(texts)


def test_requests_that_differ_in_their_plain_id_are_found() -> None:
    rest = json.dumps(REQUEST).encode()[1:]
    drawn = random.Random(0)
    plain = [chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"\\']
    texts = [b'{"id": "%b", ' % "".join(drawn.sample(plain, 8)).encode() + rest for _ in range(20)]

    assert check_alike(texts) == 20 * 19


def test_every_byte_of_an_id_is_left_out_only_if_it_stands_for_itself() -> None:
    rest = json.dumps(REQUEST).encode()[1:]
    ids = [b"aa", *(bytes((a, b)) for a in range(256) for b in b'an"\\\xa9')]

    # 93 of 95 printable characters, before a, n and themselves; "aa" itself is no other.
    assert check_alike([b'{"id":"%b",' % one + rest for one in ids], prepared=1) == 2 * 93 - 1


def test_an_id_that_is_not_the_first_member_is_compared() -> None:
    rest = json.dumps(REQUEST).encode()[:-1]

    assert check_alike([rest + b', "id": "%d"}' % n for n in range(9)]) == 0
    within = b'{"parameters": {"id": "%d"}, "inputs": [], "id": "1"}'
    assert check_alike([within % n for n in range(9)]) == 0


def test_of_many_prepared_answers_the_first_are_forgotten() -> None:
    requests: PreparedRequests[Answer] = PreparedRequests()
    rest = json.dumps(REQUEST).encode()[1:]
    texts = [b'{"id":"%b",' % (b"a" * n) + rest for n in range(MAX_PREPARED + 3)]
    for text in texts:
        requests.add(whole(text), answer_of(text))

    found = [requests.find(whole(text)) is not None for text in texts]

    assert found == [False] * 3 + [True] * MAX_PREPARED


def test_a_request_must_be_there_up_to_its_tensors_and_no_further() -> None:
    requests: PreparedRequests[Answer] = PreparedRequests()
    text = json.dumps(REQUEST).encode()
    data, tensors = whole(text), X.nbytes
    for first in (b"", data[:20], data + b"P"):
        requests.add(first, answer_of(text))
        assert requests.find(data) is None

    requests.add(data, answer_of(text))

    for nbytes in range(len(data) - tensors):
        assert requests.find(data[:nbytes]) is None
        in_json = data.index(b"\r\n\r\n") + 4 <= nbytes
        assert requests.lacks_json(data[:nbytes]) == in_json
    assert requests.find(data[:-tensors]) is not None
    assert requests.find(data) is not None
    assert requests.find(data + b"P") is None
    assert not requests.lacks_json(data)


def test_long_json_is_not_prepared() -> None:
    requests: PreparedRequests[Answer] = PreparedRequests()
    text = json.dumps({"id": "a" * MAX_HEADER_BYTES, **REQUEST}).encode()

    requests.add(whole(text), answer_of(text))

    assert requests.find(whole(text)) is None
    assert not requests.lacks_json(whole(text)[:100])
