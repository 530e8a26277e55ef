"""Bodies and answers in every format, over a real socket."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from tests.service.requests import PERMUTE, SAFETENSORS, npy, problem_of
from warpcall_service.http.body import FRAMING_BYTES

Array = npt.NDArray[Any]
LIMIT = 32 << 20  # max_body_bytes of these tests

ADD = "/v1/kernels/transpose-add"
X = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
NPY = "application/x-npy"
ARRAYS: list[Array] = [
    np.array([[True, False, True]]),
    np.array([[1, -2, 3]], np.int8),
    np.array([[1, 2, 255]], np.uint8),
    np.array([[1, 2, 2**16 - 1]], np.uint16),
    np.array([[-(2**63), 2**63 - 1, 0]], np.int64),
    np.array([[2**64 - 1, 0, 1]], np.uint64),
    np.array([[1.5, np.inf, -0.0]], np.float16),
    np.array([[1e-45, np.nan, -np.inf]], np.float32),
    np.array([[5e-324, 1 / 3, 1e308]], np.float64),
    np.array([[1 + 2j, complex(np.nan, 1), -1j]], np.complex64),
]
each_array = pytest.mark.parametrize("x", ARRAYS, ids=lambda x: x.dtype.name)


def read(answer: httpx.Response) -> Array:
    assert answer.status_code == 200, answer.text
    kind = answer.headers["content-type"]
    if kind == NPY:
        loaded: Array = np.load(io.BytesIO(answer.content))
        return loaded
    assert kind == SAFETENSORS
    return safetensors.numpy.load(answer.content)["out"]


def same(a: Array, b: Array) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@each_array
@pytest.mark.parametrize("accept", [NPY, SAFETENSORS])
def test_a_numpy_file_comes_back_in_the_format_asked_for(
    x: Array, accept: str, http: httpx.Client
) -> None:
    answer = http.post(
        f"{PERMUTE}?dims=1,0", files={"x": ("x.npy", npy(x))}, headers={"accept": accept}
    )

    assert same(read(answer), x.T.copy())


@each_array
def test_json_data_come_back_as_they_were(x: Array, http: httpx.Client) -> None:
    first = http.post(
        f"{PERMUTE}?dims=1,0",
        files={"x": ("x.npy", npy(x))},
        headers={"accept": "application/json"},
    ).json()["outputs"]["out"]

    back = http.post(f"{PERMUTE}?dims=1,0", json={"inputs": {"x": first}}, headers={"accept": NPY})

    assert first["shape"] == [3, 1]
    assert same(read(back), x)


def test_json_says_nan_and_infinities_as_strings_and_complex_as_pairs(http: httpx.Client) -> None:
    inputs = {"x": {"dtype": "C64", "shape": [2], "data": [["NaN", 1], [0, "-Infinity"]]}}

    answer = http.post(
        f"{PERMUTE}?dims=0", json={"inputs": inputs}, headers={"accept": "application/json"}
    )

    assert answer.json()["outputs"]["out"]["data"] == [["NaN", 1.0], [0.0, "-Infinity"]]


def test_complex_numbers_are_added(http: httpx.Client) -> None:
    a = {"dtype": "complex64", "shape": [1, 2], "data": [[[1, 2], [3, -4]]]}
    b = {"dtype": "int32", "shape": [2, 1], "data": [10, 20]}

    answer = http.post(
        ADD, json={"inputs": {"a": a, "b": b}}, headers={"accept": "application/json"}
    )

    expected = {"dtype": "C64", "shape": [2, 1], "data": [[[11.0, 2.0]], [[23.0, -4.0]]]}
    assert answer.json()["outputs"]["out"] == expected


def test_a_sum_that_would_be_of_a_dtype_that_calls_do_not_have_is_refused(
    http: httpx.Client,
) -> None:
    a = {"dtype": "complex64", "shape": [1, 1], "data": [1, 2]}
    b = {"dtype": "float64", "shape": [1, 1], "data": [10]}

    answer = http.post(ADD, json={"inputs": {"a": a, "b": b}})

    detail = problem_of(answer, 422, "invalid-input", None)
    assert detail.startswith("out would be complex128, which calls cannot return")


@pytest.mark.parametrize("spelling", ["BF16", "bf16", "bfloat16"])
def test_json_takes_a_dtype_in_any_spelling(spelling: str, http: httpx.Client) -> None:
    inputs = {"x": {"dtype": spelling, "shape": [2], "data": [1, 2]}}

    answer = http.post(
        f"{PERMUTE}?dims=0", json={"inputs": inputs}, headers={"accept": "application/json"}
    )

    assert answer.json()["outputs"]["out"] == {"dtype": "BF16", "shape": [2], "data": [1.0, 2.0]}


@pytest.mark.parametrize(
    "data",
    [
        [1, 2],
        [[1, 2, 3], [4, 5, 6]],
        [1, 2.5],
        [True, False],
        [True, 2],
        [2**63, 1],
        [],
        [[], []],
        [[[-(2**63)]]],
        [1.5e300],
    ],
    ids=str,
)
def test_a_plain_list_gets_the_dtype_and_shape_that_numpy_chooses(
    data: list[Any], http: httpx.Client
) -> None:
    x = np.array(data)
    dims = ",".join(map(str, range(x.ndim)))

    answers = [
        http.post(f"{PERMUTE}?dims={dims}", json={"inputs": {"x": data}}, headers={"accept": kind})
        for kind in (NPY, "application/json")
    ]

    assert same(read(answers[0]), x)
    said = answers[1].json()
    assert said["dtypes"] == {"x": said["outputs"]["out"]["dtype"]}


def test_plain_lists_say_nan_as_strings_and_stand_beside_whole_tensors(http: httpx.Client) -> None:
    body = {
        "inputs": {
            "elements": ["NaN", 1, "-Infinity"],
            "test_elements": {"dtype": "F64", "shape": [1], "data": ["-Infinity"]},
        }
    }

    answer = http.post("/v1/kernels/isin", json=body, headers={"accept": "application/json"})

    out = {"dtype": "BOOL", "shape": [3], "data": [False, False, True]}
    assert answer.json() == {"outputs": {"out": out}, "dtypes": {"elements": "F64"}}


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        ([1, "2"], 'x must hold numbers, true, false, "NaN", "Infinity" or "-Infinity", got \'2\''),
        ([[1], 2], "x must be nested as its shape (2, 1) says"),
        ([[1, 2], [3]], "x must be nested as its shape (2, 2) says"),
        ([1, None], "x must hold numbers"),
        ([2**64], "x must hold integers of at most 64 bits"),
        ([-1, 2**64], "x must hold integers of at most 64 bits"),
        (json.loads("[" * 65 + "]" * 65), "the shape of x must be at most 64 integers from 0"),
        ("1", "x must be a list of values, or have dtype, shape and data, got '1'"),
        ({"data": [1]}, "x must be a list of values, or have dtype, shape and data"),
    ],
    ids=str,
)
def test_a_list_that_is_no_tensor_is_refused_with_the_reason(
    data: Any, detail: str, http: httpx.Client
) -> None:
    answer = http.post(f"{PERMUTE}?dims=0", json={"inputs": {"x": data}})

    assert problem_of(answer, 422, "invalid-input", "x").startswith(detail)


def test_a_stored_tensor_and_a_program_can_come_as_plain_lists(http: httpx.Client) -> None:
    step = {"name": "sum", "op": "transpose-add", "inputs": {"a": "x", "b": "x"}}
    program = {"steps": [step], "outputs": {"y": "sum"}}

    stored = http.put("/v1/tensors/plain", json={"inputs": {"x": [1, 2]}})
    ran = http.post(
        "/v1/programs",
        json={"inputs": {"x": [[1.5]]}, "params": {"program": program}},
        headers={"accept": "application/json"},
    )

    assert stored.json()["stored"]["x"]["dtype"] == "I64"
    assert ran.json()["outputs"]["y"] == {"dtype": "F64", "shape": [1, 1], "data": [[3.0]]}
    assert ran.json()["dtypes"] == {"x": "F64"}
    assert http.delete("/v1/tensors/plain").status_code == 200


@pytest.mark.parametrize(
    ("shape", "dims", "data"),
    [([], [], 7), ([0], [0], []), ([0, 2**40], [1, 0], []), ([2, 0, 3], [0, 1, 2], [])],
    ids=str,
)
def test_a_value_is_plain_json_and_an_empty_tensor_an_empty_list(
    shape: list[int], dims: list[int], data: Any, http: httpx.Client
) -> None:
    x = {"dtype": "U8", "shape": shape, "data": data}

    answer = http.post(
        PERMUTE,
        json={"inputs": {"x": x}, "params": {"dims": dims}},
        headers={"accept": "application/json"},
    )

    assert answer.status_code == 200
    out = answer.json()["outputs"]["out"]
    assert out == {"dtype": "U8", "shape": [shape[d] for d in dims], "data": data}


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_either_order_are_read(
    shape: tuple[int, ...], order: str, http: httpx.Client
) -> None:
    x = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), order=order)  # type: ignore[call-overload]
    dims = ",".join(map(str, reversed(range(x.ndim))))

    answer = http.post(
        f"{PERMUTE}?dims={dims}", files={"x": ("x.npy", npy(x))}, headers={"accept": NPY}
    )

    assert same(read(answer), np.array(x.T, order="C"))


def test_parameters_come_by_metadata_query_or_form(http: httpx.Client) -> None:
    dims = {"params": json.dumps({"dims": [2, 0, 1]})}
    files = {"x": ("x.npy", npy(X))}

    answers = [
        http.post(
            PERMUTE,
            content=safetensors.numpy.save({"x": X}, metadata=dims),
            headers={"content-type": SAFETENSORS},
        ),
        http.post(f"{PERMUTE}?dims=2,0,1", files=files),
        http.post(f"{PERMUTE}?dims=2%2C0%2C+1", files=files),
        http.post(PERMUTE, files=files, data={"dims": "2,0,1"}),
        http.post(PERMUTE, files=files, data={"dims": "-1,0,1"}),
    ]

    assert [a.status_code for a in answers] == [200, 200, 422, 200, 200]
    for answer in (*answers[:2], *answers[3:]):
        assert same(read(answer), X.transpose(2, 0, 1).copy())


def test_a_parameter_given_twice_is_refused(http: httpx.Client) -> None:
    answer = http.post(f"{PERMUTE}?dims=0", files={"x": ("x.npy", npy(X))}, data={"dims": "2,0,1"})

    assert answer.status_code == 422
    assert answer.json()["field"] == "dims"


def test_a_form_takes_safetensors_parts_by_part_or_by_name(http: httpx.Client) -> None:
    words = np.array([3, 5, 7])
    both = safetensors.numpy.save({"elements": X, "test_elements": words})
    one = safetensors.numpy.save({"whatever": words})

    together = http.post("/v1/kernels/isin", files={"body": ("b.safetensors", both)})
    apart = http.post(
        "/v1/kernels/isin",
        files={"elements": ("e.npy", npy(X)), "test_elements": ("t.safetensors", one)},
    )

    assert same(read(together), np.isin(X, words))
    assert same(read(apart), np.isin(X, words))


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_narrow_floats_travel_as_safetensors_and_json_but_not_as_npy(
    dtype: Any, http: httpx.Client
) -> None:
    codes = {2: "BF16", 1: "F8_E4M3" if dtype is ml_dtypes.float8_e4m3fn else "F8_E5M2"}
    code = codes[np.dtype(dtype).itemsize]
    inputs = {"x": {"dtype": code, "shape": [2, 2], "data": [1.0, 0.5, -2.0, 0.25]}}
    body = {"inputs": inputs, "params": {"dims": [1, 0]}}

    as_json = http.post(PERMUTE, json=body, headers={"accept": "application/json"})
    as_npy = http.post(PERMUTE, json=body, headers={"accept": NPY})

    assert as_json.json()["outputs"]["out"]["data"] == [[1.0, -2.0], [0.5, 0.25]]
    assert (as_npy.status_code, as_npy.json()["field"]) == (415, "accept")


def test_several_outputs_come_by_name_and_not_as_npy(http: httpx.Client) -> None:
    x, weight = np.ones((1, 2, 3), np.float32), np.ones((1, 2), np.float32)
    body = safetensors.numpy.save({"x": x, "grad_output": x, "weight": weight})
    headers = {"content-type": SAFETENSORS}

    answer = http.post("/v1/kernels/conv-backward?bias=true", content=body, headers=headers)
    refused = http.post(
        "/v1/kernels/conv-backward", content=body, headers={**headers, "accept": NPY}
    )

    outputs = safetensors.numpy.load(answer.content)
    assert {name: t.shape for name, t in outputs.items()} == {
        "grad_x": (1, 2, 3),
        "grad_weight": (1, 2),
        "grad_bias": (2,),
    }
    assert refused.status_code == 415


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", SAFETENSORS),
        ("application/*", SAFETENSORS),
        ("application/json", "application/json"),
        ("application/x-npy;q=0.5, application/json;q=0.1", NPY),
        ("text/html, application/json", "application/json"),
        ("application/vnd.safetensors;q=0, */*", NPY),
        ("APPLICATION/JSON", "application/json"),
    ],
)
def test_the_answer_is_in_the_best_format_that_accept_allows(
    accept: str, kind: str, http: httpx.Client
) -> None:
    answer = http.post(
        f"{PERMUTE}?dims=1,0", files={"x": ("x.npy", npy(X[0]))}, headers={"accept": accept}
    )

    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)


@pytest.mark.parametrize("nbytes", [1, 1000, 100_000, 3_000_001])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_of_any_length_arrive_whole(nbytes: int, chunked: bool, http: httpx.Client) -> None:
    x = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    body = safetensors.numpy.save({"x": x})
    content = iter([body[:9], body[9:50_000], body[50_000:]]) if chunked else body

    answer = http.post(f"{PERMUTE}?dims=0", content=content, headers={"content-type": SAFETENSORS})

    assert same(read(answer), x)


@pytest.mark.parametrize("kind", ["safetensors", "form"])
def test_tensors_of_the_limit_fit_in_a_body_with_what_its_format_adds(
    kind: str, http: httpx.Client
) -> None:
    tensors = {
        "elements": np.zeros((LIMIT - 8) // 8, np.int64),
        "test_elements": np.zeros(1, np.int64),
    }
    sent: dict[str, Any] = {
        "safetensors": {
            "content": safetensors.numpy.save(tensors),
            "headers": {"content-type": SAFETENSORS},
        },
        "form": {"files": {name: (f"{name}.npy", npy(x)) for name, x in tensors.items()}},
    }

    answer = http.post("/v1/kernels/isin", **sent[kind])

    assert read(answer).all()
    assert sum(x.nbytes for x in tensors.values()) == LIMIT


def test_a_body_beyond_the_limit_and_its_format_is_refused(http: httpx.Client) -> None:
    more = np.zeros(LIMIT + FRAMING_BYTES, np.uint8)

    answer = http.post(f"{PERMUTE}?dims=0", files={"x": ("x.npy", npy(more))})

    detail = problem_of(answer, 413, "too-large", "body")
    assert "at most 32 MiB, the server's max_body_bytes, and 1 MiB around its tensors" in detail
