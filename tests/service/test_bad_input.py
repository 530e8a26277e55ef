"""Every bad input gets a problem that names the field, what came and what is allowed; then all is well."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from demo.server import Server
from tests.service.requests import PERMUTE, SAFETENSORS, Raw, header, npy, send_raw, tensor

pytestmark = pytest.mark.usefixtures("still_works")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
F4 = np.float32
FOUR = b"\0" * 4


def given(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": [0] * int(np.prod(shape))}


def problem_of(answer: httpx.Response | Raw, status: int, code: str, field: str | None) -> str:
    """Check an answer to be this problem; returns its detail."""
    members = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert members["type"] == f"urn:warpcall:problem:{code}", members
    assert (answer.status if isinstance(answer, Raw) else answer.status_code) == status
    assert members["status"] == status
    assert members.get("field") == field, members
    assert members["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in members["detail"]
    detail: str = members["detail"]
    return detail


CALLS = [
    ("permute", {"x": given("F32", 2, 2)}, {}, "dims", "needs the parameter dims"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 0]}, "dims", "each of the 2 dims of x once"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 2]}, "dims", "got (0, 2)"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0]}, "dims", "got (0,)"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [1, 2**70]}, "dims", "between -12 and 11"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 1.5]}, "dims", "a list of integers"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": "1,0"}, "dims", "a list of integers"),
    ("permute", {"x": given("F32", 1)}, {"dims": [0] * 100_000}, "dims", "at most 64 entries"),
    ("permute", {"x": given("F32", 2)}, {"dims": [0], "axes": [0]}, "axes", "has no parameter"),
    ("permute", {}, {"dims": [0]}, "x", "needs the input x"),
    ("permute", {"y": given("F32", 2)}, {"dims": [0]}, "y", "no input 'y', it takes x"),
    ("permute", {"x": given("F32", *[1] * 13)}, {"dims": [0]}, "x", "at most 12 dims"),
    ("conv", {"x": given("F32", 1, 4, 3), "weight": given("F32", 3, 2)}, {}, "weight", "divisor of"),
    ("conv", {"x": given("F32", 1, 4), "weight": given("F32", 2, 2)}, {}, "x", "3 dims, [B, C, T]"),
    ("conv", {"x": given("F32", 1, 4, 3), "weight": given("F16", 2, 2)}, {}, "weight", "got float16"),
    ("conv", {"x": given("I32", 1, 4, 3), "weight": given("F32", 2, 2)}, {}, "x", "got int32"),
    (
        "conv",
        {"x": given("F32", 1, 4, 3), "weight": given("F32", 2, 2)},
        {"padding_l": 2},
        "padding_l",
        "between 0 and 1",
    ),
    (
        "conv",
        {"x": given("F32", 1, 4, 3), "weight": given("F32", 2, 2)},
        {"padding_l": -1},
        "padding_l",
        "got -1",
    ),
    ("transpose-add", {"a": given("F32", 2, 3), "b": given("F32", 2, 3)}, {}, "b", "must have shape (3, 2)"),
    ("transpose-add", {"a": given("F32", 3), "b": given("F32", 3)}, {}, "a", "2 to 12 dims"),
    ("masked-softmax", {"x": given("F32", 2, 3)}, {"scale": True}, "scale", "a finite number"),
    ("masked-softmax", {"x": given("F32", 2, 3)}, {"causal": 1}, "causal", "a boolean"),
    ("masked-softmax", {"x": given("F32")}, {}, "x", "at least 1 dim"),
    (
        "masked-softmax",
        {"x": given("F32", 2, 3), "mask": given("U8", 2)},
        {},
        "mask",
        "broadcastable to (2, 3)",
    ),
    (
        "masked-softmax-backward",
        {"grad_output": given("F32", 2, 3), "output": given("F32", 3, 2)},
        {},
        "grad_output",
        "the shape of output",
    ),
    ("isin", {"elements": given("F32", 2), "test_elements": given("U16", 2)}, {}, "test_elements", "got uint16"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "params", "field", "says"),
    CALLS,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_an_op_cannot_take_is_refused(
    op: str,
    inputs: dict[str, Any],
    params: dict[str, Any],
    field: str,
    says: str,
    http: httpx.Client,
) -> None:
    answer = http.post(f"/v1/kernels/{op}", json={"inputs": inputs, "params": params})

    assert says in problem_of(answer, 422, "invalid-input", field)


def test_an_unknown_kernel_is_not_found(http: httpx.Client) -> None:
    answer = http.post("/v1/kernels/permutate", json={})

    detail = problem_of(answer, 404, "not-found", "name")
    assert "'permutate'" in detail
    assert "permute" in detail


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
    "65 dims": ({"x": tensor("F32", [1] * 65, 0, 4)}, "x", "at most 64 integers"),
    "10^5 dims": ({"x": tensor("F32", [1] * 100_000, 0, 4)}, "x", "at most 64 integers"),
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
        (header({}, nbytes=200 << 20), "between 2 and 1048576, got 209715200"),
        (header({}, nbytes=2**64 - 1), "between 2 and 1048576"),
        (header({}, nbytes=1000), "hold its header of 1000 bytes"),
        ((4).to_bytes(8, "little") + b"{]{]", "must be JSON"),
        ((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc", "must be JSON"),
        ((2).to_bytes(8, "little") + b"[]", "a JSON object"),
        ((600_000).to_bytes(8, "little") + b"[" * 600_000, "must be JSON"),
        (header({"x": tensor("F32", [1], 0, 4)}) + b"\0" * 3, "got"),
        (header({"x": tensor("F32", [1], 0, 4)}) + b"\0" * 5, "got"),
        (b'{"x":1,"x":1}'.__len__().to_bytes(8, "little") + b'{"x":1,"x":1}', "anything twice"),
    ],
    ids=["empty", "short", "200 MB", "2^64", "beyond", "JSON", "UTF-8", "list", "deep", "truncated",
         "longer", "twice"],
)  # fmt: skip
def test_a_body_that_does_not_fit_its_header_is_refused(
    body: bytes, says: str, http: httpx.Client
) -> None:
    answer = http.post(f"{PERMUTE}?dims=0", content=body, headers={"content-type": SAFETENSORS})

    assert says in problem_of(answer, 422, "invalid-input", "body")


@pytest.mark.parametrize("cut", [4, 40, 5_000, 2_000_000])
def test_a_client_that_stops_in_its_body_is_told(cut: int, server: Server) -> None:
    body = safetensors.numpy.save({"x": np.zeros(1 << 20, np.float32)})
    head = f"POST {PERMUTE}?dims=0 HTTP/1.1\nHost: x\nContent-Type: {SAFETENSORS}\nContent-Length: "

    answer = send_raw(server, f"{head}{len(body)}", body[:cut], finish=True)

    assert f"the client stopped after {cut}" in problem_of(answer, 422, "invalid-input", "body")


def test_a_client_that_stands_still_is_told(server: Server) -> None:
    head = f"POST {PERMUTE}?dims=0 HTTP/1.1\nHost: x\nContent-Type: {SAFETENSORS}\n"

    answer = send_raw(server, f"{head}Content-Length: 1000", b"\x50")

    assert "it did not" in problem_of(answer, 504, "timed-out", "body")


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(server: Server) -> None:
    began = time.monotonic()
    head = f"POST {PERMUTE} HTTP/1.1\nHost: x\nExpect: 100-continue\nContent-Type: {SAFETENSORS}\n"

    answer = send_raw(server, f"{head}Content-Length: {1 << 40}")

    assert "at most 33554432 bytes" in problem_of(answer, 413, "too-large", "body")
    assert time.monotonic() - began < 5  # it did not wait for the body


def test_a_chunked_body_beyond_the_limit_is_refused(http: httpx.Client) -> None:
    start = header({"x": tensor("U8", [40 << 20], 0, 40 << 20)})
    pieces = (start, *[b"\0" * (1 << 20)] * 40)

    answer = http.post(
        f"{PERMUTE}?dims=0", content=iter(pieces), headers={"content-type": SAFETENSORS}
    )

    problem_of(answer, 413, "too-large", "body" if answer.json().get("field") else None)


def test_outputs_beyond_the_arena_are_refused(http: httpx.Client) -> None:
    x = np.zeros((31 << 20,), np.uint8)
    body = safetensors.numpy.save({"a": x.reshape(1, -1), "b": np.zeros((1, 1), np.int64)})

    answer = http.post(
        "/v1/kernels/transpose-add", content=body, headers={"content-type": SAFETENSORS}
    )

    assert answer.status_code in (413, 422)


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "nonsense", None])
def test_a_content_type_that_is_not_read_is_refused(kind: str | None, server: Server) -> None:
    line = f"\nContent-Type: {kind}" if kind else ""

    answer = send_raw(server, f"POST {PERMUTE} HTTP/1.1\nHost: x{line}\nContent-Length: 2", b"ab")

    detail = problem_of(answer, 415, "unsupported-media", "content-type")
    assert SAFETENSORS in detail


def test_an_encoded_body_is_refused(http: httpx.Client) -> None:
    answer = http.post(PERMUTE, content=b"", headers={"content-encoding": "gzip"})

    problem_of(answer, 415, "unsupported-media", "content-encoding")


@pytest.mark.parametrize("accept", ["text/html", "image/png, text/*;q=0.5"])
def test_an_accept_that_nothing_fits_is_refused(accept: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={}, headers={"accept": accept})

    problem_of(answer, 415, "unsupported-media", "accept")


JSONS = [
    ("{", "must be JSON"),
    ("[]", "a JSON object"),
    ('{"inputs": {}, "inputs": {}}', "given twice"),
    ('{"tensors": {}}', "'tensors'"),
    ("[" * 100_000, "nested too deeply"),
    ('{"params": {"dims": NaN}}', "NaN is not JSON"),
    ('{"params": {"dims": [' + "9" * 5000 + "]}}", "must be JSON"),
]


@pytest.mark.parametrize(("text", "says"), JSONS, ids=[says for _, says in JSONS])
def test_json_that_is_no_call_is_refused(text: str, says: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, content=text, headers={"content-type": "application/json"})

    assert says in problem_of(answer, 422, "invalid-input", "body")


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": [2], "data": [1]},
        {"dtype": "F32", "shape": [2], "data": [1, "one"]},
        {"dtype": "F32", "shape": [2], "data": [1, True]},
        {"dtype": "U8", "shape": [1], "data": [256]},
        {"dtype": "I8", "shape": [1], "data": [0.5]},
        {"dtype": "BOOL", "shape": [1], "data": [2]},
        {"dtype": "F32", "shape": [2, 2], "data": [[1, 2], [3]]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data": []},
        {"dtype": "C64", "shape": [1], "data": [1]},
    ],
    ids=str,
)
def test_json_that_is_no_tensor_is_refused(entry: Any, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={"inputs": {"x": entry}, "params": {"dims": [0]}})

    problem_of(answer, 422, "invalid-input", "x")


def test_a_large_json_body_is_refused(http: httpx.Client) -> None:
    answer = http.post(
        PERMUTE, content=b" " * (2 << 20), headers={"content-type": "application/json"}
    )

    assert "at most 1048576" in problem_of(answer, 413, "too-large", "body")


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(X),
        npy(np.array([{"a": 1}], object), allow_pickle=True),
        npy(X.astype(">f4")),
        npy(np.array(["text"])),
        npy(X)[:-1],
        npy(X) + b"\0",
        npy(X)[:20],
        b"\x93NUMPY\x09\x00",
        b"",
    ],
    ids=[
        "pickle",
        "objects",
        "big-endian",
        "text",
        "short",
        "long",
        "no header",
        "version",
        "empty",
    ],
)
def test_a_file_that_is_no_array_is_refused(content: bytes, http: httpx.Client) -> None:
    answer = http.post(f"{PERMUTE}?dims=1,0", files={"x": ("x.npy", content)})

    assert answer.status_code in (415, 422)
    problem_of(answer, answer.status_code, answer.json()["type"].split(":")[-1], "x")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("dims=0,0", "dims"),
        ("dims=0;1", "dims"),
        ("dims=", "dims"),
        ("dims=0,1&dims=1,0", "dims"),
        ("dims=0,%FF", "query"),
        ("dims=1,0&x=1", "x"),
        ("dims=99999999999999999999,0", "dims"),
    ],
)
def test_a_query_that_is_not_of_its_kind_is_refused(
    query: str, field: str, http: httpx.Client
) -> None:
    answer = http.post(f"{PERMUTE}?{query}", files={"x": ("x.npy", npy(X))})

    problem_of(answer, 422, "invalid-input", field)


@pytest.mark.parametrize("scale", ["nan", "inf", "-inf", "1e999", "two"])
def test_a_parameter_that_is_no_finite_number_is_refused(scale: str, http: httpx.Client) -> None:
    answer = http.post(f"/v1/kernels/masked-softmax?scale={scale}", files={"x": ("x.npy", npy(X))})

    problem_of(answer, 422, "invalid-input", "scale")


def test_a_form_without_end_is_refused(http: httpx.Client) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="x"; filename="x.npy"\r\n\r\n' + npy(X)

    answer = http.post(
        f"{PERMUTE}?dims=1,0",
        content=body,
        headers={"content-type": "multipart/form-data; boundary=b"},
    )

    problem_of(answer, 422, "invalid-input", answer.json().get("field"))


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "soon"])
def test_a_timeout_that_is_none_is_refused(timeout: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={}, headers={"x-warpcall-timeout": timeout})

    assert "positive number" in problem_of(answer, 422, "invalid-input", "X-Warpcall-Timeout")


def test_a_refusal_while_the_body_is_still_sent_is_received(
    http: httpx.Client, still_works: Callable[[], None]
) -> None:
    body = header({"x": tensor("U8", [30 << 20], 0, 30 << 20)}) + b"\0" * (30 << 20)

    answer = http.post(f"{PERMUTE}?dims=7", content=body, headers={"content-type": SAFETENSORS})

    problem_of(answer, 422, "invalid-input", "dims")
    still_works()


def test_json_problems_are_plain_data(http: httpx.Client) -> None:
    answer = http.post("/v1/kernels/" + "x" * 5000, json={})

    assert len(json.dumps(answer.json())) < 1000
