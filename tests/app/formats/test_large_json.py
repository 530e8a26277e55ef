"""Large JSON is parsed and written in the server's process, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.requests import PERMUTE, header, problem_of, tensor
from warpcall.dtypes import numpy_dtypes
from warpcall.wire import TensorInfo
from warpcall_service.admission import Admission
from warpcall_service.formats import json_reader, json_values
from warpcall_service.formats.json_reader import MAX_BRACKETS, MAX_PARAM_VALUES, JsonReader
from warpcall_service.formats.json_writer import JsonWriter

JSON = {"content-type": "application/json"}
COUNT = 20_000
SEPARATORS = (", ", ": ")


@pytest.mark.parametrize("dtype", ["F32", "F64", "BF16", "C64", "BOOL", "I64", "U8", "F8_E4M3"])
def test_large_json_comes_back_as_it_was(dtype: str, http: httpx.Client) -> None:
    columns = 150 if dtype == "C64" else 400  # each of its numbers has brackets
    numbers = np.random.default_rng(7).integers(0, 2 if dtype == "BOOL" else 16, (50, columns))
    data: Any = numbers.tolist()
    if dtype == "BOOL":
        data = numbers.astype(bool).tolist()
    if dtype in ("F32", "F64", "BF16"):
        data[3][:4] = ["NaN", "Infinity", "-Infinity", -0.0]
    if dtype == "C64":
        data = [[[n, -n] for n in row] for row in data]
    x = {"dtype": dtype, "shape": [50, columns], "data": data}
    body = {"inputs": {"x": x}, "params": {"dims": [1, 0]}}

    answer = http.post(PERMUTE, json=body, headers={"accept": "application/json"})

    out = answer.json()["outputs"]["out"]
    assert (answer.status_code, out["dtype"], out["shape"]) == (200, dtype, [columns, 50])
    assert json.dumps(out["data"]).replace(".0", "") == json.dumps(
        [list(column) for column in zip(*data, strict=True)]
    ).replace(".0", "")


def test_large_inference_requests_come_back_as_they_were(http: httpx.Client) -> None:
    x = np.random.default_rng(7).integers(0, 99, (50, 400)).astype(np.float32)
    dims = {"name": "dims", "datatype": "INT64", "shape": [2], "data": [1, 0]}
    given = {"name": "x", "datatype": "FP32", "shape": [50, 400], "data": x.tolist()}
    body = {"id": "7", "inputs": [given, dims]}

    answer = http.post("/v2/models/permute/infer", json=body)

    (out,) = answer.json()["outputs"]
    assert (answer.json()["id"], out["shape"]) == ("7", [400, 50])
    assert out["data"] == x.T.flatten().tolist()


def test_large_values_go_beside_bytes(http: httpx.Client) -> None:
    rng = np.random.default_rng(7)
    x, grad = (rng.standard_normal((1, 60, 100)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal((60, 3)).astype(np.float32)
    inputs = [
        {"name": name, "datatype": "FP32", "shape": list(a.shape), "data": a.tolist()}
        for name, a in {"x": x, "grad_output": grad, "weight": weight}.items()
    ]
    together = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    mixed = {
        "inputs": inputs,
        "outputs": [
            {"name": "grad_x"},
            {"name": "grad_weight", "parameters": {"binary_data": True}},
        ],
    }

    as_bytes = http.post("/v2/models/conv-backward/infer", json=together)
    as_both = http.post("/v2/models/conv-backward/infer", json=mixed)

    wanted = outputs(as_bytes)
    got = outputs(as_both)
    assert np.array(got["grad_x"], np.float32).tobytes() == wanted["grad_x"]
    assert got["grad_weight"] == wanted["grad_weight"]


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """By name: bytes, or values as the JSON has them."""
    assert answer.status_code == 200, answer.text
    at = int(answer.headers["Inference-Header-Content-Length"])
    found = {}
    for output in json.loads(answer.content[:at])["outputs"]:
        nbytes = output.get("parameters", {}).get("binary_data_size", 0)
        found[output["name"]] = output.get("data") or answer.content[at : at + nbytes]
        at += nbytes
    return found


def test_large_json_that_is_wrong_is_refused_as_small_is(http: httpx.Client) -> None:
    x = {"dtype": "F32", "shape": [COUNT + 1], "data": [*[0] * COUNT, "one"]}

    value = http.post(PERMUTE, json={"inputs": {"x": x}, "params": {"dims": [0]}})
    no_json = http.post(PERMUTE, content=b'{"params": {"a": [' + b"1e999," * COUNT, headers=JSON)
    twice = b'{"params": {"dims": [0]}, "inputs": {}, "params": {"a": "' + b"y" * COUNT + b'"}}'
    name = http.post(PERMUTE, content=twice, headers=JSON)
    model = http.post("/v2/models/permute/infer", json={"inputs": [{**x, "name": "x"}] * 2})

    assert "got 'one'" in problem_of(value, 422, "invalid-input", "x")
    assert "1e999 is beyond" in problem_of(no_json, 422, "invalid-input", "body")
    assert "a name is given twice" in problem_of(name, 422, "invalid-input", "body")
    assert "x has data, datatype" in model.json()["error"]


@pytest.mark.parametrize("bracket", ["[", "{"])
def test_a_body_with_too_many_brackets_is_refused_before_it_is_parsed(
    bracket: str, http: httpx.Client
) -> None:
    body = bracket * (MAX_BRACKETS + 1)  # parsed, it would be refused as no JSON

    call = http.post(PERMUTE, content=body, headers=JSON)
    infer = http.post("/v2/models/permute/infer", content=body, headers=JSON)

    wanted = f"at most {MAX_BRACKETS} of the brackets [ and {{, got {MAX_BRACKETS + 1}"
    assert wanted in problem_of(call, 422, "invalid-input", "body")
    assert wanted in infer.json()["error"]


def test_a_body_with_as_many_brackets_as_are_allowed_is_read(http: httpx.Client) -> None:
    rows = MAX_BRACKETS - 7
    x = {"dtype": "U8", "shape": [rows, 1], "data": [[7]] * rows}
    body = json.dumps({"inputs": {"x": x}, "params": {"dims": [1, 0]}})

    answer = http.post(PERMUTE, content=body, headers={**JSON, "accept": JSON["content-type"]})

    brackets = body.count("[") + body.count("{")
    assert brackets == MAX_BRACKETS
    assert answer.json()["outputs"]["out"]["data"] == [[7] * rows]


@pytest.mark.parametrize("nested", [False, True])
def test_parameters_with_too_many_values_are_refused(nested: bool, http: httpx.Client) -> None:
    values: Any = [0] * MAX_PARAM_VALUES

    answer = http.post(PERMUTE, json={"params": {"dims": {"a": [values] if nested else values}}})

    detail = problem_of(answer, 422, "invalid-input", "params")
    assert f"at most {MAX_PARAM_VALUES} values, got {MAX_PARAM_VALUES + 2 + nested}" in detail


def test_an_answer_of_too_many_lists_is_refused_before_it_is_computed(http: httpx.Client) -> None:
    rows = 1 << 18
    content = header({"x": tensor("U8", [rows, 1, 1, 1, 1, 1], 0, rows)}) + b"1" * rows
    headers = {"content-type": "application/vnd.safetensors", "accept": JSON["content-type"]}

    answer = http.post(f"{PERMUTE}?dims=0,1,2,3,4,5", content=content, headers=headers)

    detail = problem_of(answer, 413, "too-large", "accept")
    assert (
        f"at most 1048576 lists, permute gives tensors of shapes that make {5 * rows + 1}" in detail
    )


SHAPES = [
    (),
    (1,),
    (5000,),
    (3, 5000),
    (5000, 3),
    (0, 7),
    (2, 1, 4097),
    (70, 60, 3),
    (1,) * 60 + (5000,),
    (200, *[1] * 60),
    (2, *[1] * 30, 4097),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["F32", "C64", "BOOL", "I16"])
def test_pieces_are_together_the_text_of_nested_lists(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    values = rng.integers(0, 2, shape).astype(numpy_dtypes()[dtype])
    info = TensorInfo("x", dtype, shape, 0, values.nbytes)
    lists = np.stack([values.real, values.imag], axis=-1) if dtype == "C64" else values

    text = "".join(pieces := [*json_values.pieces(memoryview(values.tobytes()), info, SEPARATORS)])

    assert text == json.dumps(lists.tolist() if math.prod(shape) else [])
    assert max(map(len, pieces)) < 3 * 8 * json_values.PIECE_COST
    assert json_values.list_count(info) == text.count("[") or not shape


def test_other_tasks_run_between_the_parts_of_a_large_document() -> None:
    values = np.arange(COUNT, dtype=np.float32)
    x = {"dtype": "F32", "shape": [COUNT], "data": values.tolist()}
    info = TensorInfo("x", "F32", (COUNT,), 0, values.nbytes)
    rounds = {"read": 0, "written": 0}

    async def count(what: str) -> None:
        while True:
            rounds[what] += 1
            await asyncio.sleep(0)

    async def allocate(nbytes: int) -> memoryview:
        return memoryview(bytearray(nbytes))

    async def run() -> tuple[bytes, bytes]:
        reading = asyncio.create_task(count("read"))
        text = memoryview(json.dumps({"inputs": {"x": x}}).encode())
        call = await JsonReader().read_call(text, "")
        reading.cancel()
        writing = asyncio.create_task(count("written"))
        writer = JsonWriter(Admission("JSON responses", 1, math.inf, None), "", allocate)
        written = await writer.write({"x": {"data": None}}, [info], memoryview(values.tobytes()))
        writing.cancel()
        return call.arrays["x"].tobytes(), bytes(written.data)

    read, written = asyncio.run(run())

    assert read == values.tobytes()
    assert json.loads(written) == {"x": {"data": values.tolist()}}
    assert rounds["read"] >= 1
    assert rounds["written"] >= COUNT // json_values.PIECE_COST


def test_a_text_of_the_request_is_not_taken_for_the_place_of_a_tensor(http: httpx.Client) -> None:
    given = {"name": "x", "datatype": "INT32", "shape": [1], "data": [7]}
    request_id = '"data":null, "data": null'

    answer = http.post(
        "/v2/models/permute/infer",
        json={"id": request_id, "inputs": [given], "parameters": {"dims": "0"}},
    )

    assert answer.json()["id"] == request_id
    assert answer.json()["outputs"][0]["data"] == [7]


def test_small_bodies_cannot_have_too_many_brackets() -> None:
    assert json_reader.INLINE_BYTES <= MAX_BRACKETS
