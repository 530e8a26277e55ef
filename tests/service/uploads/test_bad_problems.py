"""Problems that are refused, and processes that answer for their check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.servers import running_server
from tests.service.requests import problem_of
from tests.service.uploads.problem_sources import (
    FIRST_FORGED,
    SCALE,
    forging_cases,
    forging_uploads,
)
from tests.service.uploads.requests import (
    PROBLEMS,
    SETTINGS,
    add_problem,
    added_problem,
    problem_names,
)
from warpcall_bench.uploads.answers import CaseAnswer, ProblemAnswer
from warpcall_bench.uploads.problem_cases import NamedProblem, checked_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = str(tmp_path_factory.mktemp("data"))
    with (
        running_server({**SETTINGS, "WARPCALL_DATA_DIR": folder}) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x = 1\nPROBLEM = (\n", "line 2: SyntaxError: '(' was never closed"),
        ("x = 1\n", "a problem is declared as PROBLEM = Problem(...)"),
        (SCALE.replace("x * 2", "x @ x"), "line 8: RuntimeError: "),
        (
            SCALE.replace("def inputs(dtype, rows)", "def inputs(dtype)"),
            "line 15: inputs must be callable as inputs(dtype, rows=...)",
        ),
    ],
)
def test_a_problem_that_cannot_be_used_is_refused_with_its_line(
    source: str, error: str, http: httpx.Client
) -> None:
    said = problem_of(add_problem(http, source), 422, "invalid-input", "source")
    stored = problem_names(http)

    assert error in said
    assert said.isprintable()
    assert stored == []


def test_a_reference_without_a_usable_name_needs_one(http: httpx.Client) -> None:
    unnamed = SCALE.replace("reference=scale", "reference=lambda x: x * 2")
    private = SCALE.replace("def scale", "def _scale").replace("=scale", "=_scale")
    said = [
        problem_of(add_problem(http, source), 422, "invalid-input", "name")
        for source in (unnamed, private)
    ]
    found = added_problem(http, unnamed, name="named")

    assert said[0].startswith("name must be given, because the reference has no name")
    assert "got -scale, the name of the reference; give another one" in said[1]
    assert found["name"] == "local/named"


DECLARATION: dict[str, Any] = {
    "name": "permute",
    "summary": "",
    "description": "",
    "equivalent": "",
    "limits": "",
    "inputs": [{"name": "x", "dtypes": ["F32"], "shape": "[8]", "doc": "", "optional": False}],
    "outputs": [{"name": "out", "dtype": None, "shape": "[8]", "doc": "", "when": ""}],
    "params": [],
    "sizes": [{"name": "rows", "doc": "", "default": 8, "minimum": 1, "choices": []}],
    "dtypes": ["F32"],
    "source_sha256": "",
}
X = DECLARATION["inputs"][0]
SIZE = DECLARATION["sizes"][0]
SPEC: dict[str, Any] = {
    "inputs": {"x": {"shape": [8, 4], "dtype": "F32", "values": "normal"}},
    "params": {},
}
CASE: dict[str, Any] = {"spec": SPEC, "key": "local/scale x=F32[8,4]", "device_bytes": 1000}


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []},
        {"inputs": [X] * 33},
        {"inputs": [{**X, "name": "<b>"}]},
        {"inputs": [{**X, "dtypes": ["\n"]}]},
        {"inputs": [{**X, "optional": True}]},
        {"summary": "x" * 1001},
        {"sizes": [{**SIZE, "default": 1 << 63}]},
        {"sizes": [{**SIZE, "name": "x" * 65}]},
        {"dtypes": []},
        {"more": 1},
    ],
)
def test_a_declaration_of_another_form_is_refused(change: dict[str, Any]) -> None:
    answer = {"doc": "", "function": "f", "declaration": {**DECLARATION, **change}}

    ProblemAnswer.model_validate({**answer, "declaration": DECLARATION})
    with pytest.raises(ValidationError):
        ProblemAnswer.model_validate(answer)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [-1]},
        {"shape": [1 << 63]},
        {"shape": [1] * 65},
        {"shape": [True]},
        {"dtype": "f32"},
        {"values": "x" * 33},
        {"file": "/etc/passwd"},
    ],
)
def test_a_case_of_another_form_is_refused(change: dict[str, Any]) -> None:
    spec = {"inputs": {"x": {**SPEC["inputs"]["x"], **change}}, "params": {}}

    CaseAnswer.model_validate(CASE)
    with pytest.raises(ValidationError):
        CaseAnswer.model_validate({**CASE, "spec": spec})


def test_a_process_that_answers_for_the_check_of_a_problem_cannot_harm_the_server(
    http: httpx.Client,
) -> None:
    markup = {"doc": "<b>\x1b[31m\n", "function": "f", "declaration": DECLARATION}

    said = {
        problem_of(add_problem(http, forging_uploads(payload)), 422, "invalid-input", "source")
        for payload in (b"{}", b"[" * 100_000)
    }
    accepted = added_problem(http, forging_uploads(json.dumps(markup).encode()), name="markup")
    declared = http.get(f"{PROBLEMS}/{accepted['name']}").json()["declaration"]
    http.delete(f"{PROBLEMS}/local/markup")

    assert said == {"source: it cannot be checked: its process gave no valid answer"}
    assert accepted["doc"] == "<b> [31m "
    assert (declared["name"], declared["source_sha256"]) == ("local/markup", accepted["sha256"])


@pytest.mark.parametrize(
    "cases",
    [
        [],
        [1],
        [CASE, {**CASE, "key": "local/scale x"}],
        [{**CASE, "device_bytes": 127}],
        [{**CASE, "device_bytes": 1 << 20}],
        [{**CASE, "key": "permute x=F32[8,4]"}],
        [{**CASE, "spec": {"inputs": {"y": SPEC["inputs"]["x"]}, "params": {}}}],
        [{**CASE, "spec": {**SPEC, "params": {"eps": 1}}}],
        [{**CASE, "spec": {"inputs": {"x": {**SPEC["inputs"]["x"], "dtype": "Q4"}}, "params": {}}}],
    ],
)
def test_cases_that_do_not_follow_from_the_job_are_refused(cases: list[Any]) -> None:
    problem = NamedProblem("local/scale", "", ["x"], [])
    job = {"sweep": {"sizes": {"rows": [1]}}, "max_cases": 9, "memory_bytes": 1000}

    assert checked_cases([CASE], problem, job) == [CASE]
    assert checked_cases(cases, problem, job) is None


def test_the_number_of_cases_follows_from_the_job() -> None:
    problem = NamedProblem("local/scale", "", ["x"], [])
    cases = [{**CASE, "key": f"local/scale {number}"} for number in range(6)]
    axes = {"sizes": {"rows": [1, 2]}, "dtypes": ["F32", "F16", "F64"], "params": {"eps": [1.0]}}
    limits = {"max_cases": 6, "memory_bytes": 1000}

    assert checked_cases(cases, problem, {"sweep": axes, **limits}) == cases
    assert checked_cases(cases, problem, {"cases": [{}] * 6, **limits}) == cases
    assert checked_cases([CASE] * 6, problem, {"cases": [{}] * 6, **limits}) is None
    assert checked_cases(cases, problem, {"sweep": axes, **limits, "max_cases": 5}) is None
    assert checked_cases(cases[:1], problem, {"sweep": {}, **limits}) == cases[:1]


def test_a_process_that_answers_for_the_check_of_cases_cannot_harm_the_server(
    http: httpx.Client,
) -> None:
    refusal = {"error": "<b>\x1b[31m", "field": "cases.0.<b>\n"}
    payloads = ["b'{\"cases\": []}'", "b'{\"cases\": [' + b'{},' * 50_000 + b'1]}'"]
    payloads += [repr(json.dumps(payload).encode()) for payload in (refusal, {"cases": [CASE]})]
    added_problem(http, forging_cases(payloads))

    none, many, refused, accepted = (
        http.post("/v1/jobs/preview", json=_job([FIRST_FORGED + number])) for number in range(4)
    )
    http.delete(f"{PROBLEMS}/local/scale")

    assert problem_of(none, 422, "invalid-input", "op") == (
        "op: local/scale cannot be measured: it cannot be checked: its process gave no valid answer"
    )
    said = problem_of(many, 422, "invalid-input", "op")
    assert said.endswith(
        "the descriptions of its cases are too large together; ask for fewer cases"
    )
    assert problem_of(refused, 422, "invalid-input", "cases.0.<b> ") == "<b> [31m"
    assert (accepted.status_code, accepted.json()["device_bytes"]) == (200, 1000)


def _job(rows: list[int]) -> dict[str, Any]:
    return {"op": "local/scale", "sweep": {"sizes": {"rows": rows}}, "precision": "quick"}
