"""Whatever is sent: an answer comes, it is no fault of the server, and the next call works."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.requests import PERMUTE, SAFETENSORS, well

OPS = ("permute", "masked-softmax", "conv", "conv-backward", "transpose-add", "isin", "nothing")
quiet = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check(answer: httpx.Response, http: httpx.Client) -> None:
    """No fault of the server, an answer in the protocol's form, and the next call works."""
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        members = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert members["status"] == answer.status_code
        assert members["detail"]
    assert well(http).status_code == 200


texts = st.text(st.characters(), max_size=5)  # lone surrogates too, which JSON can say
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
tensor_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I64", "BOOL", "F16", "C64", "U8", "X9"]),
        "shape": st.lists(
            st.integers(0, 3) | st.sampled_from([-1, 2**31, 2**40, 2**62, 2**63]), max_size=4
        ),
        "data": st.just([]) | json_values | st.lists(st.integers(-3, 300), max_size=30),
    }
)

small_arrays = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([np.float32, np.int8, np.int64, np.complex64]),
)


@given(
    op=st.sampled_from(OPS),
    inputs=st.dictionaries(
        st.sampled_from(["x", "weight", "a", "b", "elements", "test_elements", "mask"]) | texts,
        tensor_entries | json_values,
        max_size=3,
    ),
    params=st.dictionaries(
        st.sampled_from(["dims", "scale", "causal", "padding_l", "z"]), json_values, max_size=3
    ),
    accept=st.sampled_from([SAFETENSORS, "application/json", "application/x-npy"]),
)
@settings(quiet, max_examples=300)
def test_any_json(op: str, inputs: Any, params: Any, accept: str, http: httpx.Client) -> None:
    body = json.dumps({"inputs": inputs, "params": params})  # httpx would not escape surrogates

    answer = http.post(
        f"/v1/kernels/{op}",
        content=body,
        headers={"content-type": "application/json", "accept": accept},
    )

    check(answer, http)


@given(
    data=st.data(),
    arrays=st.dictionaries(st.sampled_from(["x", "weight", "b"]), small_arrays, max_size=2),
)
@settings(quiet, max_examples=300)
def test_any_mutation_of_a_safetensors_body(
    data: st.DataObject, arrays: Any, http: httpx.Client
) -> None:
    metadata = {"params": json.dumps({"dims": data.draw(st.lists(st.integers(-3, 3), max_size=3))})}
    body = bytearray(safetensors.numpy.save(arrays, metadata=metadata))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)) | st.just(len(body)))

    answer = http.post(PERMUTE, content=bytes(body[:cut]), headers={"content-type": SAFETENSORS})

    check(answer, http)


@given(
    content=st.binary(max_size=400),
    kind=st.sampled_from(
        [SAFETENSORS, "application/json", "multipart/form-data; boundary=b", "multipart/form-data"]
    ),
    query=st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20
    ),
)
@settings(quiet, max_examples=300)
def test_any_bytes(content: bytes, kind: str, query: str, http: httpx.Client) -> None:
    url = httpx.URL(f"{http.base_url}{PERMUTE}", query=query.encode())

    answer = http.post(url, content=content, headers={"content-type": kind})

    check(answer, http)


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(["x", "dims", "y", ""]),
            st.sampled_from(["", "x.npy", "x.safetensors", "x.pkl"]),
            st.binary(max_size=60) | st.just(b"\x93NUMPY\x01\x00v\x00"),
        ),
        max_size=4,
    )
)
@settings(quiet, max_examples=300)
def test_any_form(parts: list[tuple[str, str, bytes]], http: httpx.Client) -> None:
    body = b""
    for name, file, content in parts:
        named = f'; filename="{file}"' if file else ""
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
        body += content + b"\r\n"

    answer = http.post(
        f"{PERMUTE}?dims=0",
        content=body + b"--b--\r\n",
        headers={"content-type": "multipart/form-data; boundary=b"},
    )

    check(answer, http)


@given(
    shape=st.lists(st.integers(0, 3) | st.sampled_from([2**31, 2**40, 2**62]), max_size=4),
    op=st.sampled_from(["permute", "masked-softmax", "isin", "transpose-add"]),
    causal=st.booleans(),
)
@settings(quiet, max_examples=200)
def test_any_shape_of_an_empty_tensor(
    shape: list[int], op: str, causal: bool, http: httpx.Client
) -> None:
    x = {"dtype": "F32", "shape": [*shape, 0], "data": []}
    flipped = {**x, "shape": [*shape[:-1], 0, *shape[-1:]]}
    inputs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "permute": ({"x": x}, {"dims": list(range(len(shape) + 1))}),
        "masked-softmax": ({"x": flipped}, {"causal": causal}),
        "isin": ({"elements": x, "test_elements": flipped}, {"invert": causal}),
        "transpose-add": ({"a": x, "b": flipped}, {}),
    }
    tensors, params = inputs[op]

    answer = http.post(
        f"/v1/kernels/{op}",
        json={"inputs": tensors, "params": params},
        headers={"accept": "application/json"},
    )

    check(answer, http)


@given(
    descr=st.sampled_from(["'<f4'", "'|u1'", "'|O'", "()", "[('a', '<f4')]", "'f4,f4'", "1", "'"]),
    shape=st.sampled_from(["(1,)", "(0x1f,)", "1", "(-1,)", "(1L,)", "(1, 2**9)", "(True,)", "("]),
    rest=st.text(st.characters(max_codepoint=255), max_size=20),
    cut=st.integers(0, 100),
)
@settings(quiet, max_examples=300)
def test_any_npy_header(descr: str, shape: str, rest: str, cut: int, http: httpx.Client) -> None:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    header = (text[: max(len(text) - cut, 0)] + rest).encode("latin-1")
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 4

    answer = http.post(f"{PERMUTE}?dims=0", files={"x": ("x.npy", content)})

    check(answer, http)
