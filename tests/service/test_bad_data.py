"""JSON that is no call, and files that are no arrays: refused by name, and then all is well."""

from __future__ import annotations

import pickle
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.requests import PERMUTE, npy, problem_of

pytestmark = pytest.mark.usefixtures("still_works")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


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
