"""Sources that do not want to be compiled: they take too long, launch too much, print or exit."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.compile_reports import sources
from tests.service.databases import Database
from tests.service.requests import problem_of
from tests.service.uploads.requests import running_lab
from warpcall.compile_reports import TEXT_NAMES

pytestmark = pytest.mark.slow
CASE: dict[str, Any] = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
FORGED = """
import os, struct
payload = {payload!r}
for fd in range(3, 1024):
    try:
        os.write(fd, struct.pack("<I", len(payload)) + payload)
    except OSError:
        pass
os._exit(0)
"""


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = str(tmp_path_factory.mktemp("data"))
    database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
    with (
        running_lab(database, "ann", WARPCALL_EXPLAIN_S="8") as lab,
        lab.http("ann") as http,
    ):
        yield http


def ask(http: httpx.Client, source: str, **fields: Any) -> httpx.Response:
    body = {"op": "permute", "case": CASE, "source": source, **fields}
    return http.post("/v1/compile-reports", json=body, timeout=120)


@pytest.mark.parametrize(
    ("source", "field", "error"),
    [
        (sources.ENDLESS, "source", "source: line 15: the compile report did not end within 8 s"),
        (sources.ENDLESS_COMPILE, "source", "the compile report did not end within 8 s"),
        (sources.WRONG_KERNEL, "source", "source: line 9: CompilationError: at 2:"),
        (sources.EXITS, "source", "its process ended before it had answered"),
        (sources.LEAVES, "source", "source: line 2: SystemExit: 3"),
        ("def other(x):\n    pass\n", "function", "function: it has no function permute"),
        ("x = 1\n\x01", "source", "source: line 2: SyntaxError"),
        ("raise ValueError('<b>')\n", "source", "source: line 1: ValueError: <b>"),
        ("def permute(x, dims):\n    return x.to('meta').sum().item()\n", "source", "line 2: "),
    ],
)
def test_a_source_that_cannot_be_compiled_says_why(
    source: str, field: str, error: str, ann: httpx.Client
) -> None:
    said = problem_of(ask(ann, source), 422, "invalid-input", field)

    assert error in said.replace("line 14: the", "line 15: the")  # a loop is interrupted anywhere
    assert said.isprintable()
    assert "Traceback" not in said


def test_a_huge_constant_is_shortened(ann: httpx.Client) -> None:
    answer = ask(ann, sources.LONG_CONSTANT)

    (kernel,) = answer.json()["kernels"]
    assert kernel["constants"]["VALUE"] == "'" + "a" * 199
    assert len(answer.content) < 1 << 20


def test_what_a_source_prints_is_dropped(ann: httpx.Client) -> None:
    (kernel,) = ask(ann, sources.PRINTS).json()["kernels"]

    assert kernel["name"] == "_fill"


def test_a_forged_answer_cannot_harm_the_server(ann: httpx.Client) -> None:
    text = {"packed": base64.b64encode(zlib.compress(bytes(50 << 20))).decode(), "nbytes": 1}
    numbers = ("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes", "warps", "stages",
               "static_shared_bytes", "dynamic_shared_bytes", "ctas", "resident_blocks",
               "resident_warps", "launches")  # fmt: skip
    short = {"packed": base64.b64encode(zlib.compress(b"of a kernel")).decode(), "nbytes": 11}
    texts = dict.fromkeys(TEXT_NAMES, short)
    kernel = {
        **dict.fromkeys(numbers, 1), "name": "\x1b[31m<b>", "config": "", "grid": [1, 1, 1],
        "arguments": {}, "constants": {}, "max_warps": 64, "limited_by": [], "texts": texts,
    }  # fmt: skip
    good = {"case": "permute", "kernels": [kernel]}
    bad = [
        {**good, "kernels": [{**kernel, "texts": {**texts, "ptx": text}}]},
        {**good, "kernels": [{**kernel, "texts": {**texts, "ptx": {**text, "packed": "%%%"}}}]},
        {**good, "kernels": [{**kernel, "texts": {}}]},
        {**good, "kernels": [{**kernel, "max_warps": 0}]},
        {**good, "kernels": [{**kernel, "registers": -1}]},
        {**good, "kernels": [kernel] * 33},
        {**good, "more": 1},
        {},
    ]

    accepted = ask(ann, FORGED.format(payload=json.dumps(good).encode()))
    refused = [ask(ann, FORGED.format(payload=json.dumps(one).encode())) for one in bad]

    assert accepted.json()["kernels"][0]["name"] == " [31m<b>"
    for answer in refused:
        assert "gave no valid answer" in problem_of(answer, 422, "invalid-input", "source")
    assert ann.get("/readyz").status_code == 200
