"""Inference requests as bytes: what the protocol allows, and what is refused, in its form."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.oip.requests import INFER, LENGTH, X, binary, body, outputs_of, packed, refused, tensor
from tests.service.requests import metrics

DTYPES: dict[str, npt.DTypeLike] = {
    "BOOL": np.bool_,
    **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}


@pytest.fixture(autouse=True)
def nothing_is_left(http: httpx.Client) -> Iterator[None]:
    """After each test the server answers, and has all of its memory back."""
    yield
    assert outputs_of(http.post(INFER, json=body())) == {"out": [0, 3, 1, 4, 2, 5]}
    state = metrics(http)
    used = [value for name, value in state.items() if name.startswith("warpcall_lane_arena_used")]
    assert used
    assert not any(used)


def test_an_answer_repeats_the_id_and_names_model_and_version(http: httpx.Client) -> None:
    answer = http.post("/v2/models/permute/versions/1/infer", json=body(id="a7"))

    assert answer.json() == {
        "model_name": "permute",
        "model_version": "1",
        "id": "a7",
        "outputs": [
            {"name": "out", "datatype": "FP32", "shape": [3, 2], "data": [0, 3, 1, 4, 2, 5]}
        ],
    }
    assert answer.headers["x-warpcall-device"]
    assert "kernel;dur=" in answer.headers["server-timing"]
    assert "id" not in http.post(INFER, json=body()).json()


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 3)], ids=str)
def test_every_datatype_goes_as_json_and_as_bytes(
    datatype: str, shape: tuple[int, ...], http: httpx.Client
) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(DTYPES[datatype])
    request = {"parameters": {"dims": ",".join(map(str, range(x.ndim)[::-1]))}}
    content, headers = packed({**request, "inputs": [binary("x", x, datatype)]}, x.tobytes())

    as_json = http.post(INFER, json={**request, "inputs": [tensor("x", x, datatype)]})
    as_bytes = http.post(INFER, content=content, headers=headers)

    for answer in (as_json, as_bytes):
        assert outputs_of(answer) == {"out": x.T.flatten().tolist()}
        (output,) = answer.json()["outputs"]
        assert (output["datatype"], output["shape"]) == (datatype, list(x.T.shape))


def test_bfloat16_goes_as_bytes_only(http: httpx.Client) -> None:
    x = X.astype(ml_dtypes.bfloat16)
    request = body(inputs=[binary("x", x, "BF16")])
    wanted = {"dims": "1,0", "binary_data_output": True}

    content, headers = packed({**request, "parameters": wanted}, x.tobytes())
    right = http.post(INFER, content=content, headers=headers)
    content, headers = packed(request, x.tobytes())
    no_output = http.post(INFER, content=content, headers=headers)
    no_input = http.post(INFER, json=body(inputs=[tensor("x", X, "BF16")]))

    assert outputs_of(right)["out"] == x.T.tobytes()
    assert "ask for binary_data" in refused(no_output, 422)
    assert "x is BF16" in refused(no_input, 422)


@pytest.mark.parametrize("first", ["x", "dims"])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_list_may_come_as_a_tensor(first: str, as_bytes: bool, http: httpx.Client) -> None:
    dims = np.array([1, 0])
    given = binary("dims", dims, "INT64") if as_bytes else tensor("dims", dims, "INT64")
    inputs = {"x": (binary("x", X), X), "dims": (given, dims)}
    order = [inputs[first], *(entry for name, entry in inputs.items() if name != first)]
    data = [array.tobytes() for entry, array in order if "parameters" in entry]
    content, headers = packed({"inputs": [entry for entry, _ in order]}, *data)

    assert outputs_of(http.post(INFER, content=content, headers=headers)) == {
        "out": X.T.flatten().tolist()
    }


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        (tensor("dims", np.array([[1, 0]]), "INT64"), "one dim"),
        (tensor("dims", np.array([1.0, 0.0]), "FP64"), "INT64"),
        (tensor("dims", np.zeros(65, np.int64), "INT64"), "at most 64"),
        (tensor("dims", np.array([0, 0]), "INT64"), "each of the 2 dims"),
    ],
)
def test_a_tensor_that_is_no_list_is_refused(dims: Any, says: str, http: httpx.Client) -> None:
    answer = http.post(INFER, json={"inputs": [tensor("x", X), dims]})

    assert says in refused(answer, 422)


def test_a_parameter_that_comes_twice_is_refused(http: httpx.Client) -> None:
    dims = tensor("dims", np.array([1, 0]), "INT64")

    assert "came twice" in refused(http.post(INFER, json=body(inputs=[tensor("x", X), dims])), 422)


def test_parameters_come_as_text_too(http: httpx.Client) -> None:
    url = "/v2/models/masked-softmax/infer"
    request = {"inputs": [tensor("x", np.zeros((2, 2), np.float32))]}

    for given in ({"causal": True, "scale": 2}, {"causal": "true", "scale": "2.0"}):
        answer = http.post(url, json={**request, "parameters": given})
        assert outputs_of(answer) == {"out": [1, 0, 0.5, 0.5]}


def test_odd_sizes_before_others_leave_them_aligned(http: httpx.Client) -> None:
    mask = np.array([False, True, False])
    x = np.zeros((1, 3), np.float32)
    content, headers = packed(
        {"inputs": [binary("mask", mask, "BOOL"), binary("x", x)]}, mask.tobytes(), x.tobytes()
    )

    answer = http.post("/v2/models/masked-softmax/infer", content=content, headers=headers)

    assert outputs_of(answer) == {"out": [0.5, 0, 0.5]}


def test_a_bias_of_another_dtype_lies_beside_the_scores(http: httpx.Client) -> None:
    bias = np.array([0, -np.inf, 0], np.float16)
    x = np.zeros((2, 3), np.float32)
    content, headers = packed(
        {"inputs": [binary("bias", bias, "FP16"), binary("x", x)]}, bias.tobytes(), x.tobytes()
    )

    answer = http.post("/v2/models/masked-softmax/infer", content=content, headers=headers)

    assert outputs_of(answer) == {"out": [0.5, 0, 0.5] * 2}


def test_outputs_come_as_each_is_asked_for(http: httpx.Client) -> None:
    x, weight = np.ones((1, 2, 4), np.float32), np.ones((1, 3), np.float32)
    inputs = [tensor("grad_output", x), tensor("x", x), tensor("weight", weight)]
    request = {"inputs": inputs, "parameters": {"bias": True}}
    url = "/v2/models/conv-backward/infer"
    every = outputs_of(http.post(url, json=request))
    right = {name: np.array(data, np.float32) for name, data in every.items()}

    def asked(**how: bool) -> dict[str, Any]:
        outputs = [{"name": n, "parameters": {"binary_data": b}} for n, b in how.items()]
        return outputs_of(http.post(url, json={**request, "outputs": outputs}))

    assert every.keys() == {"grad_x", "grad_weight", "grad_bias"}
    for wanted in (["grad_x"], ["grad_x", "grad_bias"], ["grad_weight", "grad_bias"], list(every)):
        assert asked(**dict.fromkeys(wanted, True)) == {n: right[n].tobytes() for n in wanted}
    assert asked(grad_x=True, grad_weight=False, grad_bias=True) == {
        "grad_x": right["grad_x"].tobytes(),
        "grad_weight": every["grad_weight"],
        "grad_bias": right["grad_bias"].tobytes(),
    }


def test_a_large_tensor_goes_both_ways_beside_large_json(http: httpx.Client) -> None:
    a, b = np.random.default_rng(0).random((2, 100, 200), np.float32)
    content, headers = packed(
        {
            "inputs": [tensor("b", b.T), binary("a", a)],
            "outputs": [{"name": "out", "parameters": {"binary_data": True}}],
        },
        a.tobytes(),
    )

    answer = http.post("/v2/models/transpose-add/infer", content=content, headers=headers)

    assert outputs_of(answer)["out"] == (a.T + b.T).tobytes()


def test_tensors_of_the_limit_fit_in_a_body_beside_their_json(http: httpx.Client) -> None:
    elements, members = np.zeros((32 << 20) // 8 - 1, np.int64), np.zeros(1, np.int64)
    inputs = [binary("elements", elements, "INT64"), binary("test_elements", members, "INT64")]
    wanted = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    content, headers = packed(wanted, elements.tobytes() + members.tobytes())

    answer = http.post("/v2/models/isin/infer", content=content, headers=headers)

    assert outputs_of(answer)["out"] == b"\1" * elements.size


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_compressed(coding: str, chunked: bool, http: httpx.Client) -> None:
    x = np.arange(1 << 19, dtype=np.float32).reshape(1 << 9, 1 << 10)
    wanted = {"dims": "1,0", "binary_data_output": True}
    content, headers = packed({"inputs": [binary("x", x)], "parameters": wanted}, x.tobytes())
    squeezed = gzip.compress(content) if coding == "gzip" else zlib.compress(content)
    sent = iter([squeezed[:1000], squeezed[1000:]]) if chunked else squeezed

    answer = http.post(INFER, content=sent, headers={**headers, "content-encoding": coding})

    assert outputs_of(answer)["out"] == x.T.tobytes()


def test_a_compressed_body_is_refused_where_it_is_none_or_too_large(http: httpx.Client) -> None:
    text = json.dumps(body()).encode()
    squeezed = gzip.compress(text)
    zeros = np.zeros(31 << 20, np.uint8)
    wanted = {"dims": "0", "binary_data_output": True}
    inputs = {"inputs": [binary("x", zeros, "UINT8")], "parameters": wanted}
    content, headers = packed(inputs, zeros.tobytes())
    bomb, head = gzip.compress(content), {**headers, "content-encoding": "gzip"}
    large = gzip.compress(np.random.default_rng(0).bytes(5 << 20))

    def detail_of(content: bytes, status: int, coding: str = "gzip") -> str:
        answer = http.post(INFER, content=content, headers={"content-encoding": coding})
        return refused(answer, status)

    assert "it is not" in detail_of(text, 422)
    assert "its end is missing" in detail_of(squeezed[:-5], 422)
    assert "more follows" in detail_of(squeezed + squeezed, 422)
    assert "gzip or deflate" in detail_of(text, 415, "br")
    assert "at most 524288 bytes" in detail_of(large, 413)
    detail = refused(http.post(INFER, content=bomb, headers=head), 422)
    assert "more than 100 times its bytes beyond the first 1048576" in detail


@pytest.mark.parametrize(
    ("length", "says"),
    [
        ("-1", "a number of bytes"),
        ("x", "a number of bytes"),
        ("", "a number of bytes"),
        ("9" * 18, "at most the body's"),
        ("100000000", "at most the body's"),
        ("3", "must be JSON"),
        ("0", "must be JSON"),
    ],
)
def test_a_wrong_length_of_the_json_is_refused(length: str, says: str, http: httpx.Client) -> None:
    answer = http.post(INFER, content=json.dumps(body()), headers={LENGTH: length})

    assert says in refused(answer, 422)


@pytest.mark.parametrize("extra", [-24, -1, 1, 4])
@pytest.mark.parametrize("chunked", [False, True])
def test_binary_data_that_do_not_add_up_are_refused(
    extra: int, chunked: bool, http: httpx.Client
) -> None:
    content, headers = packed(body(inputs=[binary("x", X)]), X.tobytes() + bytes(max(extra, 0)))
    content = content[: len(content) + min(extra, 0)]

    answer = http.post(INFER, content=iter([content]) if chunked else content, headers=headers)

    said = refused(answer, 422)
    assert "binary_data_size say" in said if not chunked else "bytes" in said


def given(**changes: Any) -> dict[str, Any]:
    """A request with one member of its input changed; None takes it away."""
    entry = {**tensor("x", X), **changes}
    return body(inputs=[{name: value for name, value in entry.items() if value is not None}])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (given(datatype="BYTES"), "takes no BYTES"),
        (given(datatype="FP128"), "a datatype of UINT64"),
        (given(datatype="F32"), "a datatype of UINT64"),
        (given(datatype=7), "a datatype of UINT64"),
        (given(datatype=None), "must have a datatype"),
        (given(shape=None), "must have a shape"),
        (given(shape=[2, 2]), "(2, 2)"),
        (given(shape=[-1, 3]), "integers from 0"),
        (given(shape=[2.0, 3]), "integers from 0"),
        (given(shape=[2**62, 2**62]), "2^63"),
        (given(shape="23"), "integers from 0"),
        (given(data=None), "one of data"),
        (given(data=[1, 2]), "6 values"),
        (given(data=["a"] * 6), "must hold numbers"),
        (given(data={}), "nested"),
        (given(name="y"), "no input 'y'"),
        (given(name=None), "an object with a name"),
        (given(size=3), "got 'size'"),
        (given(parameters={"binary_data_size": 24}), "one of data"),
        (given(data=None, parameters={"binary_data_size": 23}), "has 24 bytes"),
        (given(data=None, parameters={"binary_data_size": -1}), "an integer from 0"),
        (given(data=None, parameters={"binary_data_size": "24"}), "an integer from 0"),
        (given(data=None, parameters={"binary_data_size": 24}), "of binary data"),
        (given(parameters={"colour": 1}), "got 'colour'"),
        (given(parameters=[]), "must be an object"),
        (body(inputs=[]), "needs the input x"),
        (body(inputs={}), "a list"),
        (body(inputs=[tensor("x", X)] * 2), "came twice"),
        (body(inputs=[tensor("x", X)] * 257), "at most 256"),
        (body(inputs=["x"]), "an object with a name"),
        (body(outputs=[{"name": "y"}]), "gives out here"),
        (body(outputs=[{"name": "out"}] * 2), "came twice"),
        (body(outputs=[{"name": "out", "parameters": {"classification": 2}}]), "classification"),
        (body(outputs=[{"name": "out", "parameters": {"binary_data": 1}}]), "true or false"),
        (body(parameters={"dims": [1, 0]}), "must be a string, a number or a boolean"),
        (body(parameters={"dims": None}), "must be a string, a number or a boolean"),
        (body(parameters={"dims": "1;0"}), "dims must be integers separated by commas"),
        (body(parameters={"dims": "0,0"}), "each of the 2 dims"),
        (body(parameters={"dims": "1,0", "priority": 1}), "no parameter 'priority'"),
        (body(parameters={"dims": "1,0", "binary_data_output": "yes"}), "true or false"),
        (body(parameters={"dims": "1,0", "timeout": -1}), "an integer from 0"),
        (body(id=7), "id must be a string"),
        (body(ouputs=[]), "got 'ouputs'"),
        ([], "must be a JSON object"),
    ],
)
def test_a_request_that_is_wrong_gets_the_reason(
    request_: Any, says: str, http: httpx.Client
) -> None:
    assert says in refused(http.post(INFER, json=request_), 422)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", '{"inputs": [], "inputs": []}', "[" * 5000, "\xff", '{"id": "\ud800"}'],
)
def test_what_is_not_json_is_refused(text: str, http: httpx.Client) -> None:
    content = text.encode("latin-1" if text == "\xff" else "utf-8", "surrogatepass")

    refused(http.post(INFER, content=content), 422)


def test_numbers_that_json_lacks_go_as_text_and_come_as_both(http: httpx.Client) -> None:
    text = json.dumps(body()).replace("0.0", "NaN").replace("1.0", "-Infinity")

    answer = http.post(INFER, content=text)

    assert outputs_of(answer) == {"out": ["NaN", 3, "-Infinity", 4, 2, 5]}


def test_a_deadline_of_the_request_is_kept(http: httpx.Client) -> None:
    x = np.zeros((1, 1, 1 << 20), np.float32)
    weight = np.zeros((1, 1000), np.float32)  # half a second
    content, headers = packed(
        {
            "inputs": [binary("x", x), binary("weight", weight)],
            "parameters": {"timeout": 100_000, "binary_data_output": True},
        },
        x.tobytes(),
        weight.tobytes(),
    )

    answer = http.post("/v2/models/conv/infer", content=content, headers=headers)

    refused(answer, 504)
