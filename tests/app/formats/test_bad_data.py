"""JSON, forms and .npy files that are no call: each a problem, and the next call works."""

from __future__ import annotations

import pickle
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.requests import PERMUTE, header, npy, problem_of, tensor

pytestmark = pytest.mark.usefixtures("still_works")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
FORM = {"content-type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="x"; filename="x.npy"\r\n\r\n'
END = b"\r\n--b--\r\n"

JSONS = [
    ("", "must be JSON"),
    ("{", "must be JSON"),
    ("[]", "a JSON object, got []"),
    ('{"inputs": {}, "inputs": {}}', "given twice"),
    ('{"tensors": {}}', "inputs and params, got 'tensors'"),
    ("[" * 16_000, "nested too deeply"),
    ('{"params": {"dims": NaN}}', "NaN is not JSON"),
    ('{"params": {"scale": -Infinity}}', "-Infinity is not JSON"),
    ('{"params": {"scale": 1e999}}', "1e999 is beyond what a float64 can hold"),
    ('{"params": {"a": {"b": [[-1e999]]}}}', "-1e999 is beyond what a float64 can hold"),
    ('{"inputs": {"x": {"dtype": "F32", "shape": [1], "data": [1e999]}}}', "1e999 is beyond"),
    ('{"params": {"a": 1' + "0" * 400 + ".0}}", "is beyond what a float64 can hold"),
    ('{"params": {"a": {' + ", ".join(f'"{i}": 0' for i in range(1100)) + "}}}", "1024 members"),
    ('{"params": {"dims": [' + "9" * 5000 + "]}}", "must be JSON: Exceeds"),
]


@pytest.mark.parametrize(("text", "says"), JSONS, ids=[says for _, says in JSONS])
def test_json_that_is_no_call_is_refused(text: str, says: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, content=text, headers={"content-type": "application/json"})

    assert says in problem_of(answer, 422, "invalid-input", "body")


def of(dtype: str, shape: list[Any], data: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (1, "dtype, shape and data, got 1"),
        ({"dtype": "F32", "shape": [2]}, "dtype, shape and data, got {'dtype'"),
        (of("F31", [1], [1]), "x must have a dtype of uint64, int64, float64,"),
        (of("F31", [1], [1]), "got 'F31'"),
        ({"dtype": ["F32"], "shape": [1], "data": [1]}, "got ['F32']"),
        (of("F32", [2], [1]), "must have 2 values, got 1"),
        (of("F32", [2], [1, "one"]), "got 'one'"),
        (of("F32", [2], [1, True]), "got True"),
        (of("F32", [1], [10**400]), "values that float32 can"),
        (of("F16", [1], [70_000]), "values that float16 can, got 70000"),
        (of("F8_E4M3", [1], ["Infinity"]), "values that float8_e4m3fn can, got inf"),
        (of("U8", [1], [256]), "values that uint8 can, got 256"),
        (of("I8", [1], [0.5]), "integers, got 0.5"),
        (of("BOOL", [1], [2]), "true or false, got 2"),
        (of("F32", [2, 2], [[1, 2], [3]]), "nested as its shape (2, 2) says"),
        (of("F32", [-1], [1]), "integers from 0, got [-1]"),
        (of("F32", [1.0], [1]), "integers from 0, got [1.0]"),
        (of("F32", [1] * 65, [1]), "at most 64 integers"),
        (of("F32", [2**40, 2**40], []), "less than 2^63 bytes"),
        (of("U8", [2**62, 0, 2**62], []), "less than 2^63 bytes"),
        (of("C64", [1], [1]), "must have 2 values, got 1"),
    ],
)
def test_json_that_is_no_tensor_is_refused(entry: Any, says: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={"inputs": {"x": entry}, "params": {"dims": [0]}})

    assert says in problem_of(answer, 422, "invalid-input", "x")


def test_a_name_that_utf8_cannot_say_is_refused(http: httpx.Client) -> None:
    body = r'{"inputs": {"\ud800": {"dtype": "U8", "shape": [1], "data": [1]}}, "params": {}}'

    answer = http.post(
        f"{PERMUTE}?dims=0", content=body, headers={"content-type": "application/json"}
    )

    assert r"no input '\ud800'" in problem_of(answer, 422, "invalid-input", "\ud800")


def test_a_large_json_body_is_refused(http: httpx.Client) -> None:
    body = b" " * (5 << 20)
    kind = {"content-type": "application/json"}

    declared = http.post(PERMUTE, content=body, headers=kind)
    chunked = http.post(PERMUTE, content=iter([body]), headers=kind)

    assert "at most 524288 bytes, got 5242880" in problem_of(declared, 413, "too-large", "body")
    assert "at most 524288 bytes" in problem_of(chunked, 413, "too-large", "body")


def test_an_answer_too_large_for_json_is_refused_before_it_is_computed(http: httpx.Client) -> None:
    file = {"x": ("x.npy", npy(np.zeros(5 << 20, np.uint8)))}

    answer = http.post(f"{PERMUTE}?dims=0", files=file, headers={"accept": "application/json"})

    assert "at most 524288 bytes" in problem_of(answer, 413, "too-large", "accept")


def described(descr: str, shape: str) -> bytes:
    """A .npy file of one byte whose header says this."""
    return framed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}") + b"1"


def framed(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


FILES = {
    "pickle": (pickle.dumps(X), "must be a .npy file"),
    "objects": (npy(np.array([{"a": 1}], object), allow_pickle=True), "pickle, never read"),
    "big-endian": (npy(X.astype(">f4")), "little-endian, got >f4"),
    "text": (npy(np.array(["text"])), "got <U4"),
    "dates": (npy(np.array(["2026-01-01"], "M8[D]")), "got <M8[D]"),
    "records": (npy(np.zeros(1, [("a", "f4")])), "must have a dtype of"),
    "short": (npy(X)[:-1], "1 bytes of data did not come"),
    "long": (npy(X) + b"\0", "1 bytes or more follow"),
    "no header": (npy(X)[:20], "its header did not come"),
    "version": (b"\x93NUMPY\x09\x00", "version 1.0 or 2.0, got 9.0"),
    "long header": (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "at most 2048 bytes, got 2147483659"),
    "empty": (b"", "its header did not come"),
    "unclosed": (framed("{'descr': ("), "header that numpy reads"),
    "nested": (framed("(" * 200), "header that numpy reads"),
    "many signs": (framed("(" * 1000), "at most 256 words and signs, got 1006"),
    "no dtype": (described("()", "(1,)"), "header that numpy reads"),
    "negative": (described("'|u1'", "(-1,)"), "integers from 0, got [-1]"),
    "overflow": (described("'|u1'", "(2**40, 2**40)".replace("2**40", str(2**40))), "2^63"),
    "digits": (described("'|u1'", f"(0x{'f' * 1900},)"), "got shape [67292559"),
    "beyond the body": (described("'|u1'", "(1000000,)"), "fit in the body, got 1000000 bytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_array_is_refused(name: str, http: httpx.Client) -> None:
    content, says = FILES[name]

    answer = http.post(f"{PERMUTE}?dims=1,0", files={"x": ("x.npy", content)})

    assert says in problem_of(answer, 422, "invalid-input", "x")


@pytest.mark.parametrize("name", ["x.pkl", "x.pt", "x.npz", "x"])
def test_a_file_of_another_kind_is_never_read(name: str, http: httpx.Client) -> None:
    answer = http.post(f"{PERMUTE}?dims=1,0", files={"x": (name, pickle.dumps(X))})

    detail = problem_of(answer, 415, "unsupported-media", "x")
    assert f".npy or a .safetensors file, got '{name}'" in detail


FORMS = {
    "no end": (PART + npy(X), "body", "must end with its boundary"),
    "no part": (b"--b--\r\n", "x", "needs the input x"),
    "nonsense": (b"nonsense", "body", "must be a form"),
    "no name": (b"--b\r\nContent-Type: text/plain\r\n\r\n1" + END, "body", "Content-Disposition"),
    "twice": (2 * (PART + npy(X) + b"\r\n") + END[2:], "x", "given once, it came twice"),
    "many parts": (
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n' * 200 + END[2:],
        "x",
        "given once, it came twice",
    ),
    "long head": (b"--b\r\nX: " + b"x" * (8 << 20) + b"\r\n\r\n1" + END, "body", "header size"),
    "not UTF-8": (
        b'--b\r\nContent-Disposition: form-data; name="dims"\r\n\r\n\xff' + END,
        "dims",
        "must be UTF-8",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_none_is_refused(name: str, http: httpx.Client) -> None:
    content, field, says = FORMS[name]

    answer = http.post(f"{PERMUTE}?dims=1,0", content=content, headers=FORM)

    assert says in problem_of(answer, 422, "invalid-input", field)


def test_a_form_of_unknown_length_is_refused(http: httpx.Client) -> None:
    content = iter([PART, npy(X), END])

    answer = http.post(f"{PERMUTE}?dims=1,0", content=content, headers=FORM)

    assert "not chunked" in problem_of(answer, 422, "invalid-input", "content-length")


def test_a_safetensors_part_is_checked_as_a_body_is(http: httpx.Client) -> None:
    beyond = header({"x": tensor("U8", [100], 0, 100)}) + b"1"
    overlapping = header({"x": tensor("U8", [2], 0, 2), "y": tensor("U8", [2], 1, 3)}) + b"123"

    answers = [
        http.post(f"{PERMUTE}?dims=0", files={"x": ("x.safetensors", content)})
        for content in (beyond, overlapping)
    ]

    assert "99 bytes of data did not come" in problem_of(answers[0], 422, "invalid-input", "x")
    assert "overlaps" in problem_of(answers[1], 422, "invalid-input", "y")
