"""Compile reports of sources, uploads and shipped ops, from a server that makes them without the sandbox.

Their sandbox is that of `uploads/test_sandboxed_uploads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.service.compile_reports import sources
from tests.service.databases import Database
from tests.service.job_requests import client
from tests.service.requests import problem_of
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.requests import Lab, added_problem, running_lab, uploaded

pytestmark = pytest.mark.slow
PATH = "/v1/compile-reports"
CASE: dict[str, Any] = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
SOFTMAX_CASE: dict[str, Any] = {"shape": [64, 1000], "dtype": "BF16"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = str(tmp_path_factory.mktemp("data"))
    database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
    keys = {"ben": database.key("ben", "bench"), "cal": database.key("cal", "call")}
    with running_lab(database, "ann", "bob", WARPCALL_EXPLAIN_S="100") as running:
        yield replace(running, keys={**running.keys, **keys})


@pytest.fixture
def ann(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as http:
        yield http


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(PATH, json={"op": "permute", "case": CASE, **fields}, timeout=120)


def report(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A report that must be made."""
    answer = ask(http, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_source_is_compiled_for_the_architecture_that_is_asked_for(ann: httpx.Client) -> None:
    asked = {"op": "masked-softmax", "case": SOFTMAX_CASE, "source": sources.SOFTMAX}

    hopper = report(ann, **asked)
    blackwell = report(ann, **asked, gpu="sm_100", texts=["ptx"])

    assert (hopper["op"], hopper["gpu"], hopper["implementation"]) == (
        "masked-softmax", "sm_90", None,
    )  # fmt: skip
    assert hopper["case"].startswith("masked-softmax x=BF16[64,1000]")
    assert (hopper["stopped"], hopper["failures"]) == ("", [])
    (kernel,) = hopper["kernels"]
    assert (kernel["name"], kernel["config"], kernel["grid"]) == ("_softmax", "", [64, 1, 1])
    assert kernel["arguments"] == {
        "x_ptr": "*bf16, multiple of 16",
        "out_ptr": "*bf16, multiple of 16",
        "columns": "i32",
    }
    assert kernel["constants"] == {"BLOCK": "1024"}
    assert (kernel["warps"], kernel["stages"], kernel["ctas"]) == (8, 3, 1)
    assert 8 <= kernel["registers"] <= 64
    assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == 0
    assert kernel["dynamic_shared_bytes"] == 32  # a float of each warp
    assert kernel["resident_warps"] <= kernel["max_warps"] == 64
    texts = kernel["texts"]
    assert [*texts] == ["ttir", "ttgir", "ptx", "sass"]
    assert "tt.func public @_softmax" in texts["ttir"]["text"]
    assert ".target sm_90a" in texts["ptx"]["text"]
    assert "EXIT" in texts["sass"]["text"]
    assert all(not one["cut"] and one["nbytes"] == len(one["text"]) for one in texts.values())
    (other,) = blackwell["kernels"]
    assert [*other["texts"]] == ["ptx"]
    assert ".target sm_100a" in other["texts"]["ptx"]["text"]


def test_an_upload_is_compiled_by_its_name_and_version(lab: Lab, ann: httpx.Client) -> None:
    stored = uploaded(ann, sources.SOFTMAX, op="masked-softmax", name="soft", private=True)
    version = f"{stored['name']}@{stored['version']}"
    asked = {"op": "masked-softmax", "case": SOFTMAX_CASE, "texts": []}

    found = report(ann, **asked, implementation="ann/soft")
    with lab.http("bob") as bob:
        hidden = ask(bob, **asked, implementation="ann/soft")

    assert found["implementation"] == version
    assert [one["name"] for one in found["kernels"]] == ["_softmax"]
    assert found == report(ann, **asked, implementation=version)
    assert "not yours to read" in problem_of(hidden, 422, "invalid-input", "implementations")


@pytest.mark.parametrize(
    ("op", "case"),
    [("permute", CASE), ("masked-softmax", SOFTMAX_CASE), ("isin", {"shape": [9], "dtype": "I32"})],
)
def test_a_shipped_op_is_compiled(op: str, case: dict[str, Any], ann: httpx.Client) -> None:
    found = report(ann, op=op, case=case, gpu="sm_80", texts=["sass"])

    assert found["implementation"] == "warpcall"
    assert found["kernels"]
    assert all(one["registers"] > 0 and one["resident_blocks"] for one in found["kernels"])


def test_every_configuration_of_an_autotuner_is_compiled(ann: httpx.Client) -> None:
    found = report(ann, source=sources.TUNED, texts=[])

    kernels = found["kernels"]
    assert [one["config"].split(", ")[0] for one in kernels] == ["num_warps: 2", "num_warps: 4"]
    assert [one["warps"] for one in kernels] == [2, 4]
    assert [one["launches"] for one in kernels] == [3, 3]
    assert kernels[0]["grid"] == [64, 4, 1]
    assert kernels[0]["constants"] == {"BLOCK": "256"}


def test_an_implementation_of_a_problem_is_compiled(ann: httpx.Client) -> None:
    added_problem(ann, SCALE)
    source = sources.STOPS.replace("permute(x, dims)", "scale(x, **rest)")

    found = report(ann, op="ann/scale", case={"sizes": {"rows": 32}}, source=source)
    own = ask(ann, op="ann/scale", case={"sizes": {"rows": 32}})

    assert found["op"] == "ann/scale"
    assert [one["name"] for one in found["kernels"]] == ["_fill"]
    assert "has no kernels for ann/scale" in problem_of(own, 422, "invalid-input", "implementation")


def test_an_implementation_that_ends_early_says_where(ann: httpx.Client) -> None:
    found = report(ann, source=sources.STOPS)

    assert [one["name"] for one in found["kernels"]] == ["_fill"]
    assert found["stopped"] == "line 14: ValueError: <b>no</b>"


def test_the_number_of_kernels_is_bounded(ann: httpx.Client) -> None:
    found = report(ann, source=sources.MANY, texts=[])

    assert len(found["kernels"]) == 32
    assert found["stopped"] == "line 14: TooManyKernels: it launches more than 32 different kernels"


def test_an_implementation_without_kernels_has_an_empty_report(ann: httpx.Client) -> None:
    found = report(ann, source=sources.NOTHING)

    assert (found["kernels"], found["stopped"]) == ([], "")


@pytest.mark.parametrize(
    ("change", "field", "error"),
    [
        ({"gpu": "sm_1"}, "gpu", "gpu: it must be one of sm_80, sm_86, sm_87, sm_89, sm_90, "),
        ({"op": "absent"}, "op", "op: it must be one of conv, "),
        ({"op": "ann/absent"}, "implementation", "implementation: warpcall has no kernels"),
        ({"implementation": "torch"}, "implementation", "implementation: it must be warpcall, or"),
        ({"implementation": "ann/x"}, "implementations", "implementations: there is no 'ann/x'"),
        ({"implementation": "ann/x", "source": "x"}, "source", "source: implementation must not"),
        ({"case": {"shape": [2, 3], "dtype": "F32"}}, "case.dims", "case: permute needs the parameter dims"),
        ({"case": {**CASE, "dtype": "F3"}}, "case.dtype", "case: dtype must be one of"),
        ({"texts": ["ptx", "exe"]}, "texts.1", "texts.1: Input should be 'ttir', 'ttgir'"),
        ({"function": "f()"}, "function", "function: "),
        ({"more": 1}, "more", "more: Extra inputs"),
        (
            {"source": "x = 1", "case": {**CASE, "shape": [1 << 20, 1 << 12]}},
            "case",
            "case: inputs and outputs may have at most 1073741824 bytes in a compile report",
        ),
    ],
)  # fmt: skip
def test_a_wrong_request_names_the_field(
    change: dict[str, Any], field: str, error: str, ann: httpx.Client
) -> None:
    said = problem_of(ask(ann, **change), 422, "invalid-input", field)

    assert said.startswith(error)


def test_a_body_of_many_lists_is_refused(ann: httpx.Client) -> None:
    body = b'{"op": "permute", "case": {"shape": [' + b"[]," * 50_000 + b"1]}}"
    answer = ann.post(PATH, content=body, headers={"content-type": "application/json"})

    assert "without its texts" in problem_of(answer, 422, "invalid-input", "body")


def test_a_body_of_quotation_marks_in_a_text_without_an_end_is_refused_at_once(
    ann: httpx.Client,
) -> None:
    body = b'{"op": "' + rb"\"" * 250_000
    answer = ann.post(PATH, content=body, headers={"content-type": "application/json"})

    problem_of(answer, 422, "invalid-input", "body")


def test_a_source_needs_the_role_upload_and_the_rest_the_role_bench(lab: Lab) -> None:
    with client(lab.server, lab.keys["ben"]) as ben, client(lab.server, lab.keys["cal"]) as cal:
        own, source, refused = ask(ben), ask(ben, source="x = 1"), ask(cal)

    assert own.status_code == 200
    assert "the role upload" in problem_of(source, 403, "forbidden", None)
    assert "the role bench" in problem_of(refused, 403, "forbidden", None)
