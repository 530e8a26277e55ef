"""Bodies that are not what they say, or never end: each a problem, and the next call works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pytest
import safetensors.numpy
from safetensors.numpy import save

from demo.server import Server
from tests.service.requests import PERMUTE, SAFETENSORS, header, problem_of, send_raw, tensor
from tests.service.stored_tensors import ALL, listed, memory

pytestmark = [pytest.mark.usefixtures("still_works"), pytest.mark.slow]

FOUR = b"\0" * 4


def framed(text: bytes) -> bytes:
    """A header of any bytes."""
    return len(text).to_bytes(8, "little") + text


POST = f"POST {PERMUTE}?dims=0 HTTP/1.1\nHost: localhost\nContent-Type: {SAFETENSORS}\n"

HEADERS = {
    "overlap": ({"x": tensor("F32", [1], 0, 4), "y": tensor("F32", [1], 2, 6)}, "y", "overlaps"),
    "gap": ({"x": tensor("F32", [1], 4, 8)}, "x", "leaves a gap"),
    "misaligned": (
        {"a": tensor("U8", [1], 0, 1), "x": tensor("F32", [1], 1, 5)},
        "x",
        "multiple of 4 bytes",
    ),
    "span": ({"x": tensor("F32", [2], 0, 4)}, "x", "has 8 bytes"),
    "backwards": ({"x": tensor("F32", [1], 4, 0)}, "x", "[begin, end]"),
    "negative": ({"x": tensor("F32", [-1], 0, 4)}, "x", "integers from 0"),
    "fraction": ({"x": tensor("F32", [1.0], 0, 4)}, "x", "integers from 0"),
    "overflow": ({"x": tensor("F32", [2**40, 2**40], 0, 4)}, "x", "less than 2^63 bytes"),
    "zero times overflow": ({"x": tensor("F32", [2**70, 0], 0, 0)}, "x", "less than 2^63 bytes"),
    "strides": ({"x": tensor("U8", [2**62, 0, 2**62], 0, 0)}, "x", "less than 2^63 bytes"),
    "surrogate": ({"\ud800": tensor("F32", [1], 0, 4)}, "\ud800", "no input '\\ud800'"),
    "65 dims": ({"x": tensor("F32", [1] * 65, 0, 4)}, "x", "at most 64 integers"),
    "10^4 dims": ({"x": tensor("F32", [1] * 10_000, 0, 4)}, "x", "at most 64 integers"),
    "dtype": ({"x": tensor("F31", [1], 0, 4)}, "x", "F31"),
    "no dtype": ({"x": {"shape": [1]}}, "x", "dtype, shape and data_offsets"),
    "metadata": ({"__metadata__": {"params": 1}}, "body", "names to strings"),
    "params": (
        {"__metadata__": {"params": "[1]"}, "x": tensor("F32", [1], 0, 4)},
        "params",
        "a JSON object",
    ),
    "NaN": (
        {"__metadata__": {"params": '{"dims": NaN}'}, "x": tensor("F32", [1], 0, 4)},
        "params",
        "NaN is not JSON",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_cannot_be_is_refused(name: str, http: httpx.Client) -> None:
    entries, field, says = HEADERS[name]

    answer = http.post(
        f"{PERMUTE}?dims=0", content=header(entries) + FOUR, headers={"content-type": SAFETENSORS}
    )

    assert says in problem_of(answer, 422, "invalid-input", field)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "8 bytes of header length"),
        (b"\x10\0\0", "8 bytes of header length"),
        (header({}, nbytes=200 << 20), "between 2 and 131072, got 209715200"),
        (header({}, nbytes=2**64 - 1), "between 2 and 131072"),
        (header({}, nbytes=1000), "hold its header of 1000 bytes"),
        ((4).to_bytes(8, "little") + b"{]{]", "must be JSON"),
        ((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc", "must be JSON"),
        ((2).to_bytes(8, "little") + b"[]", "a JSON object"),
        ((4_000).to_bytes(8, "little") + b"[" * 4_000, "must be JSON"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "at most 4096 brackets, got 100000"),
        ((100_000).to_bytes(8, "little") + b"0," * 50_000, "at most 32768 commas, got 50000"),
        (framed(b'{"x": [' + b"9" * 4_000 + b"]}"), "at most 40 digits, got 4000"),
        (framed(b'{"' + b"x" * 300 + b'": 1}'), "at most 255 characters, got 300"),
        (header({"x": tensor("F32", [1], 0, 4)}) + b"\0" * 3, "got"),
        (header({"x": tensor("F32", [1], 0, 4)}) + b"\0" * 5, "got"),
        (b'{"x":1,"x":1}'.__len__().to_bytes(8, "little") + b'{"x":1,"x":1}', "anything twice"),
    ],
    ids=["empty", "short", "200 MB", "2^64", "beyond", "JSON", "UTF-8", "list", "deep", "brackets", "commas", "digits", "long name", "truncated",
         "longer", "twice"],
)  # fmt: skip
def test_a_body_that_does_not_fit_its_header_is_refused(
    body: bytes, says: str, http: httpx.Client
) -> None:
    answer = http.post(f"{PERMUTE}?dims=0", content=body, headers={"content-type": SAFETENSORS})

    assert says in problem_of(answer, 422, "invalid-input", "body")


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_chunked_body_that_goes_on_after_its_last_tensor_is_refused(
    pieces: int, http: httpx.Client
) -> None:
    """Such a body declares no length that could be compared with its header.

    The bytes that follow come in the chunk of the last tensor, or in a chunk of their own.
    """
    whole = header({"x": tensor("F32", [1], 0, 4)}) + FOUR
    chunks = [whole + FOUR] if pieces == 1 else [whole, FOUR]

    answer = http.post(
        f"{PERMUTE}?dims=0", content=iter(chunks), headers={"content-type": SAFETENSORS}
    )

    detail = problem_of(answer, 422, "invalid-input", "body")
    assert detail == "the last tensor must end the body, 4 bytes or more follow"


@pytest.mark.parametrize("cut", [4, 40, 5_000, 2_000_000])
def test_a_client_that_stops_in_its_body_is_refused(cut: int, server: Server) -> None:
    body = safetensors.numpy.save({"x": np.zeros(1 << 20, np.float32)})

    answer = send_raw(server, f"{POST}Content-Length: {len(body)}", body[:cut], finish=True)

    assert f"the client stopped after {cut}" in problem_of(answer, 422, "invalid-input", "body")


def test_a_client_that_stands_still_is_refused(server: Server) -> None:
    answer = send_raw(server, f"{POST}Content-Length: 1000", b"\x50")

    assert "or its rest, in 1 s" in problem_of(answer, 504, "timed-out", "body")


def test_a_client_that_sends_a_byte_now_and_then_is_refused(server: Server) -> None:
    def drip() -> Iterator[bytes]:
        for byte in header({"x": tensor("F32", [1], 0, 4)})[:15]:
            yield bytes([byte])
            time.sleep(0.1)

    answer = send_raw(server, f"{POST}Content-Length: 100000", drip())

    assert "or its rest, in 1 s" in problem_of(answer, 504, "timed-out", "body")


def test_a_deadline_counts_while_the_body_comes(server: Server) -> None:
    answer = send_raw(server, f"{POST}X-Warpcall-Timeout: 0.2\nContent-Length: 1000", b"\x50")

    assert "deadline passed" in problem_of(answer, 504, "timed-out", None)


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\n"], ids=["sent", "offered"])
def test_a_body_beyond_the_limit_is_refused_before_it_is_read(expect: str, server: Server) -> None:
    answer = send_raw(server, f"{POST}{expect}Content-Length: {1 << 40}")

    detail = problem_of(answer, 413, "too-large", "body")
    assert detail == (
        "the body must have at most 32 MiB, the server's max_body_bytes, and 1 MiB around its "
        "tensors, got 1 TiB"
    )


def test_a_chunked_body_beyond_the_limit_is_refused(http: httpx.Client) -> None:
    start = header({"x": tensor("U8", [40 << 20], 0, 40 << 20)})
    pieces = (start, *[b"\0" * (1 << 20)] * 40)

    answer = http.post(
        f"{PERMUTE}?dims=0", content=iter(pieces), headers={"content-type": SAFETENSORS}
    )

    assert "at most 32 MiB" in problem_of(answer, 413, "too-large", "body")


def test_outputs_beyond_the_arena_are_refused(http: httpx.Client) -> None:
    empty = {"dtype": "F32", "shape": [0, 1 << 40, 4], "data": []}
    weight = {"dtype": "F32", "shape": [1, 1], "data": [1]}
    inputs = {"x": empty, "grad_output": empty, "weight": weight}

    answer = http.post("/v1/kernels/conv-backward?bias=true", json={"inputs": inputs})

    detail = problem_of(answer, 413, "too-large", "body")
    assert "must fit in 124 MiB together" in detail


@pytest.mark.parametrize(
    ("head", "body", "field"),
    [
        ("Transfer-Encoding: chunked", b"zz\r\n", None),
        ("Transfer-Encoding: chunked", b"4\r\nabcd\r\n-1\r\n", None),
        ("Transfer-Encoding: gzip", b"", "transfer-encoding"),
        ("Transfer-Encoding: gzip, chunked", b"0\r\n\r\n", "transfer-encoding"),
    ],
)
def test_chunks_that_are_none_are_refused(
    head: str, body: bytes, field: str | None, server: Server
) -> None:
    answer = send_raw(server, POST + head, body)

    problem_of(answer, 400, "bad-request", field)
    assert answer.headers["connection"] == "close"


def test_a_refusal_while_the_body_is_still_sent_is_received(
    http: httpx.Client, still_works: Callable[[], None]
) -> None:
    body = header({"x": tensor("U8", [30 << 20], 0, 30 << 20)}) + b"\0" * (30 << 20)

    answer = http.post(f"{PERMUTE}?dims=7", content=body, headers={"content-type": SAFETENSORS})

    problem_of(answer, 422, "invalid-input", "dims")
    still_works()


def test_who_leaves_in_the_middle_of_a_put_leaves_nothing(
    tensor_client: httpx.Client, server: Server
) -> None:
    body = save({"x": np.zeros(1 << 18, np.float32)})
    head = f"PUT {ALL}/x HTTP/1.1\nHost: localhost\nContent-Type: {SAFETENSORS}\nContent-Length: {len(body)}"

    answer = send_raw(server, head, body[: len(body) // 2], finish=True)

    assert answer.status == 422
    assert listed(tensor_client) == []
    assert memory(tensor_client) == 0
