"""Parts of a request that would be slow if they were large: each has a limit, named in the message.

How long the event loop is held is measured by `python -m bench.attacks.loop_stalls`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError

from demo.server import Server
from tests.service.requests import PERMUTE, SAFETENSORS, header, npy, problem_of, send_raw, tensor
from warpcall import InvalidInput
from warpcall_bench.jobs.models import JobRequest
from warpcall_service.formats import multipart
from warpcall_service.formats.multipart import FormParser

pytestmark = pytest.mark.usefixtures("still_works")

JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="x"; filename="x.npy"\r\n\r\n'
END = b"\r\n--b--\r\n"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("count", [128, 129])
def test_a_request_has_at_most_128_headers(count: int, server: Server) -> None:
    lines = "".join(f"X-{i}: 1\n" for i in range(count - 1)).strip()

    answer = send_raw(server, f"GET /healthz HTTP/1.1\nHost: localhost\n{lines}")

    if count == 128:
        assert answer.status == 200
    else:
        assert answer.status == 431
        assert answer.json()["field"] == "headers"
        assert "at most 128 headers" in answer.json()["detail"]


@pytest.mark.parametrize("path", [PERMUTE, "/v1/jobs", "/v1/kernels"])
def test_a_query_has_at_most_128_parameters(path: str, http: httpx.Client) -> None:
    query = "&".join(f"{i}=" for i in range(129))

    answer = http.request("POST" if path == PERMUTE else "GET", f"{path}?{query}")

    detail = problem_of(answer, 422, "invalid-input", "query")
    assert detail == "the query string must have at most 128 parameters, got 129"


@pytest.mark.parametrize(
    ("accept", "says"),
    [
        ("a/b;x=" + "c" * 1100, "at most 1024 bytes and 32 media ranges, got 1106 and 1"),
        (", ".join(["a/b"] * 33), "at most 1024 bytes and 32 media ranges, got 163 and 33"),
    ],
)
def test_an_accept_header_is_short(accept: str, says: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={}, headers={"accept": accept})

    assert says in problem_of(answer, 415, "unsupported-media", "accept")


def test_an_accept_header_of_32_ranges_is_read(http: httpx.Client) -> None:
    x = {"dtype": "U8", "shape": [1], "data": [1]}
    body = {"inputs": {"x": x}, "params": {"dims": [0]}}

    answer = http.post(
        PERMUTE, json=body, headers={"accept": "a/b," * 31 + "application/json;q=0.1"}
    )

    assert answer.json()["outputs"]["out"]["data"] == [1]


def test_a_content_type_is_short(http: httpx.Client) -> None:
    kind = "multipart/form-data; boundary=b" + "; a=b" * 50

    answer = http.post(PERMUTE, content=b"", headers={"content-type": kind})

    detail = problem_of(answer, 415, "unsupported-media", "content-type")
    assert detail == "the Content-Type must have at most 256 bytes, got 281"


def test_a_list_in_text_has_at_most_64_entries(http: httpx.Client) -> None:
    files = {"x": ("x.npy", npy(X))}

    by_query = http.post(f"{PERMUTE}?dims={'0,' * 20_000}0", files=files)
    by_form = http.post(PERMUTE, files=files, data={"dims": "0," * 20_000 + "x"})

    says = "dims must have at most 64 entries, got 20001"
    assert problem_of(by_query, 422, "invalid-input", "dims") == says
    assert problem_of(by_form, 422, "invalid-input", "dims") == says


LOOK_ALIKES = np.frombuffer(b"\r\n--bX" * 1025, np.uint8)
FORMS = {
    "padding": (PART + npy(X) + b"\r\n--b" + b" " * 65 + b"\r\n", "at most 64 spaces"),
    "tabs": (PART + npy(X) + b"\r\n--b" + b"\t " * 40_000, "at most 64 spaces"),
    "boundaries": (PART + npy(LOOK_ALIKES) + END, "its boundary at most 1024 times"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_slow_to_take_apart_is_refused(name: str, http: httpx.Client) -> None:
    content, says = FORMS[name]

    answer = http.post(f"{PERMUTE}?dims=1,0", content=content, headers=FORM)

    assert says in problem_of(answer, 422, "invalid-input", "body")


def test_padding_is_counted_over_the_pieces_in_which_it_comes() -> None:
    form = FormParser(b"b", memoryview(bytearray(4096)), {"params": []})
    form.feed(PART + npy(X) + b"\r\n--b")
    form.feed(b" " * 33)

    with pytest.raises(InvalidInput, match="at most 64 spaces"):
        form.feed(b"\t" * 33)


def test_a_file_may_hold_what_looks_like_a_boundary(http: httpx.Client) -> None:
    x = np.frombuffer(b"\r\n--bX" * (multipart.MAX_BOUNDARIES - 2), np.uint8)

    answer = http.post(
        f"{PERMUTE}?dims=0",
        content=PART + npy(x) + b"\r\n--b \t\r\nContent-Disposition: form-data; name=\"y\"\r\n\r\n1"
        + END,
        headers=FORM,
    )  # fmt: skip

    assert "no parameter 'y'" in problem_of(answer, 422, "invalid-input", "y")


def test_names_of_tensors_are_short(http: httpx.Client) -> None:
    x = {"dtype": "U8", "shape": [1], "data": [1]}
    infer = {"name": "y" * 256, "datatype": "UINT8", "shape": [1], "data": [1]}

    answer = http.post(PERMUTE, json={"inputs": {"y" * 256: x}})
    model = http.post("/v2/models/permute/infer", json={"inputs": [infer]})

    says = "the name of a tensor must have at most 255 characters, got 256"
    assert problem_of(answer, 422, "invalid-input", "body") == says
    assert model.json() == {"error": says}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("y" * 100_000, "inputs"),
        (["y" * 50_000] * 2, "inputs"),
        ({"x": {"y": [0] * 40_000}}, "x"),
        ({"x": [{"y": "z" * 10_000}] * 10}, "x"),
    ],
    ids=["text", "list", "object", "nested"],
)
def test_a_message_is_short_whatever_came(value: object, field: str, http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={"inputs": value, "params": {}})

    assert problem_of(answer, 422, "invalid-input", field)
    assert len(answer.content) < 1000


def test_a_field_of_a_problem_is_short(http: httpx.Client) -> None:
    answer = http.post(PERMUTE, json={"inputs": {}, "params": {"y" * 10_000: [0] * 65}})

    assert len(answer.json()["field"]) == 255
    assert len(answer.json()["detail"]) == 2000


def test_256_tensors_and_a_program_of_256_steps_fit_in_a_header(http: httpx.Client) -> None:
    names = [f"tensor_{i}_{'x' * 50}"[:64] for i in range(256)]
    steps = [
        {"name": f"s{i}", "op": "transpose-add", "inputs": {"a": name, "b": name}}
        for i, name in enumerate(names)
    ]
    program = {"steps": steps, "outputs": {f"y{i}": f"s{i}" for i in range(256)}}
    given = json.dumps({"program": program}, separators=(",", ":"))
    entries = {name: tensor("U8", [1, 1], i, i + 1) for i, name in enumerate(names)}
    body = header({"__metadata__": {"params": given}, **entries}) + b"\1" * 256

    answer = http.post("/v1/programs", content=body, headers={"content-type": SAFETENSORS})

    # Such steps need more than the 60 KiB of a message to the worker. The error shows that the
    # header was read and the whole program was checked.
    detail = problem_of(answer, 422, "invalid-input", "program")
    assert "described in 61440 bytes" in detail


def test_a_job_is_described_in_64_kib(http: httpx.Client, still_works: Callable[[], None]) -> None:
    case = {"shape": [1], "dtype": "F32", "params": {"dims": [0]}}
    job = {"op": "permute", "cases": [case] * 1400}
    wrong = {"op": "permute", "cases": [{}] * 10_000}
    sweep = {"shapes": [[1]], "dtypes": ["F32"], "params": {"dims": [[]] * 5000}}

    answer = http.post("/v1/jobs/preview", json=job)
    first = http.post("/v1/jobs/preview", json=wrong)
    many = http.post("/v1/jobs/preview", json={"op": "permute", "sweep": sweep})

    detail = problem_of(answer, 413, "too-large", "body")
    assert detail.startswith("the description of a job must have at most 65536 bytes, got ")
    assert (
        problem_of(first, 422, "invalid-input", "cases.0") == "cases.0: give either inputs or shape"
    )
    assert "at most 4096 items" in problem_of(many, 422, "invalid-input", "sweep.params.dims")
    still_works()


@pytest.mark.parametrize(
    "wanted",
    [
        {"cases": [{}] * 2000},
        {"cases": [{"shape": "x"}] * 2000},
        {"sweep": {"shapes": ["x"] * 2000, "dtypes": ["F32"]}},
        {"sweep": {"shapes": [[1]], "dtypes": [1] * 2000}},
        {"cases": [{"shape": ["x"] * 60, "dtype": "F32"}]},
        {"tags": ["?"] * 16, "cases": [{"shape": [1], "dtype": "F32"}]},
    ],
)
def test_thousands_of_wrong_entries_of_a_job_are_one_error(wanted: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, InvalidInput)) as found:
        JobRequest.model_validate({"op": "permute", **wanted}).check_form()

    assert not isinstance(found.value, ValidationError) or found.value.error_count() == 1
