"""Calls that an op or the protocol cannot take: each a problem that names what came and what may
come.

After each of them the next call works.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.requests import (
    PERMUTE,
    SAFETENSORS,
    header,
    npy,
    problem_of,
    tensor,
)

pytestmark = pytest.mark.usefixtures("still_works")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = {"dtype": "U8", "shape": [1], "data": [1]}
MILLION = 10**6


def given(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": [0] * int(np.prod(shape))}


CALLS = [
    ("permute", {"x": given("F32", 2, 2)}, {}, "dims", "needs the parameter dims"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 0]}, "dims", "each of the 2 dims of x once"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 2]}, "dims", "got (0, 2)"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0]}, "dims", "got (0,)"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [1, 2**70]}, "dims", "between -64 and 63"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": [0, 1.5]}, "dims", "a list of integers"),
    ("permute", {"x": given("F32", 2, 2)}, {"dims": "1,0"}, "dims", "a list of integers"),
    ("permute", {"x": given("F32", 1)}, {"dims": [0] * 100_000}, "dims", "at most 64 entries"),
    ("permute", {"x": given("F32", 2)}, {"dims": [0], "axes": [0]}, "axes", "has no parameter"),
    ("permute", {}, {"dims": [0]}, "x", "needs the input x"),
    ("permute", {"y": given("F32", 2)}, {"dims": [0]}, "y", "no input 'y', it takes x"),
    ("permute", {"x": given("F32", *[1] * 65)}, {"dims": [0]}, "x", "at most 64 integers"),
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
    ("transpose-add", {"a": given("F32", 3), "b": given("F32", 3)}, {}, "a", "2 to 64 dims"),
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
        "masked-softmax",
        {"x": given("F32", 2, 3, 4, 5), "mask": given("U8", 2, 5)},
        {},
        "mask",
        "pass mask[:, None, None]",
    ),
    (
        "masked-softmax",
        {"x": given("F32", 2, 3, 4, 5), "bias": given("BF16", 2, 5)},
        {},
        "bias",
        "pass bias[:, None, None]",
    ),
    (
        "masked-softmax",
        {"x": given("F32", 2, 3, 4, 5), "slopes": given("F32", 2)},
        {},
        "slopes",
        "must have shape (3,)",
    ),
    (
        "masked-softmax-backward",
        {"grad_output": given("F32", 2, 3), "output": given("F32", 3, 2)},
        {},
        "grad_output",
        "the shape of output",
    ),
    ("isin", {"elements": given("F32", 2), "test_elements": given("F8_E5M2", 2)}, {}, "test_elements", "got float8_e5m2"),
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


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_op_is_not_found_and_the_nearest_is_named(
    method: str, http: httpx.Client
) -> None:
    answer = http.request(method, "/v1/kernels/permutate", json={})

    detail = problem_of(answer, 404, "not-found", "name")
    assert detail.startswith("there is no op 'permutate', there are conv, ")
    assert detail.endswith("; did you mean 'permute'?")


def test_the_path_of_ops_leads_to_that_of_kernels(http: httpx.Client) -> None:
    body = {"inputs": {"x": {"dtype": "F32", "shape": [1, 2], "data": [1, 1]}}}

    called = http.post(
        "/v1/ops/permute?dims=1,0",
        json=body,
        headers={"accept": "application/json"},
        follow_redirects=True,
    )
    listed = http.get("/v1/ops", follow_redirects=True)
    one = http.get("/v1/ops/isin", follow_redirects=True)
    elsewhere = http.get("/v1/ops/%2F%2Fevil.example", follow_redirects=False)

    assert [answer.status_code for answer in called.history] == [308]
    assert called.json()["outputs"]["out"]["shape"] == [2, 1]
    assert listed.json() == http.get("/v1/kernels").json()
    assert one.json() == http.get("/v1/kernels/isin").json()
    assert elsewhere.headers.get("location", "../").startswith("../")


def test_an_op_is_called_with_underscores_too(http: httpx.Client) -> None:
    body = {"inputs": {"x": {"dtype": "F32", "shape": [1, 2], "data": [1, 1]}}}

    answer = http.post(
        "/v1/kernels/masked_softmax", json=body, headers={"accept": "application/json"}
    )

    assert answer.json()["outputs"]["out"]["data"] == [[0.5, 0.5]]
    assert http.get("/v1/kernels/masked_softmax").json()["name"] == "masked-softmax"


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/octet-stream", "application/python-pickle", "nonsense", None],
)
def test_a_content_type_that_is_not_read_is_refused(kind: str | None, http: httpx.Client) -> None:
    headers = {"content-type": kind} if kind else {}

    answer = http.post(PERMUTE, content=b"ab", headers=headers)

    detail = problem_of(answer, 415, "unsupported-media", "content-type")
    assert SAFETENSORS in detail
    assert (kind or "got none") in detail


def test_an_encoded_body_is_refused(http: httpx.Client) -> None:
    answer = http.post(PERMUTE, content=b"", headers={"content-encoding": "gzip"})

    assert "got 'gzip'" in problem_of(answer, 415, "unsupported-media", "content-encoding")


@pytest.mark.parametrize("accept", ["text/html", "image/png, text/*;q=0.5"])
def test_an_accept_that_nothing_fits_is_refused(accept: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={}, headers={"accept": accept})

    detail = problem_of(answer, 415, "unsupported-media", "accept")
    assert SAFETENSORS in detail
    assert accept in detail


def test_a_million_dims_are_refused_in_every_format(http: httpx.Client) -> None:
    dims = [0] * MILLION
    many_params = {"__metadata__": {"params": json.dumps({"dims": dims[:30_000]})}}
    x = {"x": tensor("U8", [1], 0, 1)}
    file = {"x": ("x.npy", npy(np.ones(1)))}
    binary = {"content-type": SAFETENSORS}

    by_json = http.post(PERMUTE, json={"inputs": {"x": ONE}, "params": {"dims": dims[:100_000]}})
    body = header({**many_params, **x}) + b"1"
    by_metadata = http.post(PERMUTE, content=body, headers=binary)
    by_form = http.post(PERMUTE, files=file, data={"dims": "0," * MILLION})
    by_query = http.post(f"{PERMUTE}?dims={'0,' * 30_000}0", files=file)
    json_shape = {"dtype": "U8", "shape": [1] * 100_000, "data": [1]}
    shaped = http.post(PERMUTE, json={"inputs": {"x": json_shape}, "params": {"dims": [0]}})

    says = "dims must have at most 64 entries, got"
    assert f"{says} 100000" in problem_of(by_json, 422, "invalid-input", "dims")
    assert f"{says} 30000" in problem_of(by_metadata, 422, "invalid-input", "dims")
    assert "at most 65536 bytes" in problem_of(by_form, 422, "invalid-input", "dims")
    assert f"{says} 30001" in problem_of(by_query, 422, "invalid-input", "dims")
    assert "at most 64 integers" in problem_of(shaped, 422, "invalid-input", "x")


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


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "soon"])
def test_a_timeout_that_is_none_is_refused(timeout: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={}, headers={"x-warpcall-timeout": timeout})

    detail = problem_of(answer, 422, "invalid-input", "X-Warpcall-Timeout")
    assert f"a positive number of seconds, got '{timeout}'" in detail


def test_a_problem_is_short_whatever_came(http: httpx.Client) -> None:
    answer = http.post("/v1/kernels/" + "x" * 5000, json={})

    assert len(json.dumps(answer.json())) < 1000
