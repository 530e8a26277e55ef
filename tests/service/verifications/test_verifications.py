"""Verifications of sources, from a server that runs them without the sandbox.

Their sandbox is that of `uploads/test_sandboxed_uploads`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.service.databases import Database
from tests.service.job_requests import client
from tests.service.requests import log_of, problem_of
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.requests import Lab, added_problem, running_lab
from tests.service.verifications import sources

pytestmark = pytest.mark.slow
PATH = "/v1/verifications"
CASE: dict[str, Any] = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
TURNED: dict[str, Any] = {"shape": [8, 100, 70], "dtype": "BF16", "params": {"dims": [2, 1, 0]}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = str(tmp_path_factory.mktemp("data"))
    database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
    keys = {"ben": database.key("ben", "bench")}
    with running_lab(database, "ann", WARPCALL_EXPLAIN_S="60") as running:
        yield replace(running, keys={**running.keys, **keys})
        assert "Traceback" not in log_of(running.server)


@pytest.fixture
def ann(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as http:
        yield http


def ask(http: httpx.Client, source: str, *cases: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"op": "permute", "cases": cases or [CASE], "source": source, **fields}
    return http.post(PATH, json=body, timeout=180)


def verified(
    http: httpx.Client, source: str, *cases: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """A verification that must be made."""
    answer = ask(http, source, *cases, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_source_is_described_launch_by_launch_for_the_architecture(ann: httpx.Client) -> None:
    hopper = verified(ann, sources.PERMUTE, TURNED, {**TURNED, "shape": [3, 5, 7]})
    blackwell = verified(ann, sources.PERMUTE, TURNED, gpu="sm_100")

    assert (hopper["op"], hopper["gpu"], hopper["language"]) == ("permute", "sm_90", "python")
    assert hopper["timing"] == "timing needs a GPU, and this server has none"
    assert hopper["compiler"].startswith("Triton 3.")
    first, second = hopper["cases"]
    assert (first["case"], first["reason"]) == ("permute x=BF16[8,100,70] dims=2,1,0", "")
    assert (first["kernels"], first["scratch_bytes"]) == (2, 8 * 100 * 70 * 2)
    actions = [step["choices"][0]["actions"] for step in first["steps"]]
    assert [[one["kind"] for one in step] for step in actions] == [["launch"], ["launch"]]
    assert [step[0]["grid"] for step in actions] == [[26, 1, 1], [140, 1, 1]]
    (launch,) = actions[0]
    assert (launch["kernel"], launch["threads"], launch["cluster"]) == (
        "_transpose_kernel", [128, 1, 1], [1, 1, 1],
    )  # fmt: skip
    assert launch["registers"] > 0
    assert launch["nbytes"] is None
    assert second["steps"][0]["choices"][0]["actions"][0]["grid"] == [1, 1, 1]
    assert blackwell["gpu"] == "sm_100"
    assert blackwell["cases"][0]["reason"] == ""


def test_every_configuration_of_an_autotuner_is_a_choice(ann: httpx.Client) -> None:
    found = verified(
        ann, sources.SOFTMAX, {"shape": [100, 1000], "dtype": "F32"}, op="masked-softmax"
    )

    (case,) = found["cases"]
    (step,) = case["steps"]
    assert (case["kernels"], case["scratch_bytes"]) == (5, 0)
    assert [one["actions"][0]["grid"][0] for one in step["choices"]] == [100, 100, 50, 25, 25]
    assert step["choices"][1]["label"].startswith("ROWS: 1, num_warps: 8")
    assert [one["actions"][0]["threads"][0] for one in step["choices"]] == [128, 256, 128, 128, 256]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (sources.COMPUTES, "it computes with torch (aten.add.Tensor) (line 15)"),
        (sources.READS, "(aten.sum.default) (line 16)"),
        (sources.RETURNS_INPUT, "out must be float32 of shape (256, 64)"),
        (sources.RAISES, "line 15: ValueError: <b>not for such dims</b>"),
        (sources.WRONG_KERNEL, "line 10: "),
        (sources.LEAVES, "line 2: SystemExit: 3"),
    ],
)
def test_what_cannot_be_verified_says_why(source: str, reason: str, ann: httpx.Client) -> None:
    (case,) = verified(ann, source)["cases"]

    assert reason in case["reason"]
    assert case["reason"].replace("\n", "").isprintable()
    assert (case["steps"], case["kernels"]) == ([], 0)


def test_a_case_that_cannot_be_verified_does_not_hide_another_one(ann: httpx.Client) -> None:
    found = verified(ann, sources.PERMUTE, CASE, TURNED)

    assert "only dims 2,1,0" in found["cases"][0]["reason"]
    assert found["cases"][1]["reason"] == ""


def test_an_implementation_of_a_problem_is_verified(ann: httpx.Client) -> None:
    added_problem(ann, SCALE)
    source = sources.COPY.replace("permute(x, dims)", "scale(x, **rest)")

    found = verified(ann, source, {"sizes": {"rows": 32}}, op="ann/scale")

    assert found["op"] == "ann/scale"
    assert found["cases"][0]["reason"] == ""
    assert found["cases"][0]["case"].startswith("ann/scale x=")


def test_an_answer_is_kept(ann: httpx.Client, lab: Lab) -> None:
    def checks() -> str:
        with lab.http("root") as root:
            text = root.get("/metrics").text
        return next(
            line for line in text.splitlines() if 'checks_total{outcome="accepted"}' in line
        )

    first = verified(ann, sources.COPY)
    before = checks()
    again = verified(ann, sources.COPY)
    same = checks()
    verified(ann, sources.COPY + "\n")

    assert again == first
    assert same == before
    assert checks() != before


@pytest.mark.parametrize(
    ("change", "field", "error"),
    [
        ({"gpu": "sm_1"}, "gpu", "gpu: it must be one of sm_80, sm_86, "),
        ({"op": "absent"}, "op", "op: it must be one of conv, "),
        ({"op": "ann/absent"}, "op", "op: there is no "),
        ({"cases": []}, "cases", "cases: "),
        ({"cases": [CASE] * 9}, "cases", "cases: "),
        ({"cases": [CASE, {**CASE, "dtype": "F3"}]}, "cases.1.dtype", "cases: dtype must be one of"),
        ({"language": "cuda"}, "launches", "launches: a source in CUDA C++ needs a declaration"),
        ({"language": "c"}, "language", "language: "),
        ({"launches": {"a": "b" * 17_000}}, "launches", "launches must have at most 16384 bytes"),
        ({"function": "f()"}, "function", "function: "),
        ({"function": "other"}, "function", "function: it has no function other"),
        ({"source": "x = (\n"}, "source", "source: line 1: SyntaxError"),
        ({"source": "raise ValueError('<b>')\n"}, "source", "source: line 1: ValueError: <b>"),
        ({"source": sources.EXITS}, "source", "source: it cannot be checked: its process ended"),
        ({"more": 1}, "more", "more: Extra inputs"),
    ],
)  # fmt: skip
def test_a_wrong_request_names_the_field(
    change: dict[str, Any], field: str, error: str, ann: httpx.Client
) -> None:
    body = {"op": "permute", "cases": [CASE], "source": sources.COPY, **change}

    said = problem_of(ann.post(PATH, json=body, timeout=180), 422, "invalid-input", field)

    assert said.startswith(error)


def test_a_forged_answer_is_refused_or_checked_like_any_other(ann: httpx.Client) -> None:
    case = {"key": "k", "spec": {}, "outputs": {}}
    rest: dict[str, Any] = {"declaration": None, "remarks": [], "compiler": "\x1b[31m<b>"}
    plan = {"gpu": "sm_90", "kernels": [], "buffers": [["x", 1]], "steps": [], "outputs": [[0, 0]]}
    bad: list[Any] = [
        {},
        [],
        {"cases": [], **rest},
        {"cases": [case] * 2, **rest},
        {"cases": [{**case, "plan": plan}]},
        {"cases": [{}], **rest},
    ]

    refused = [ask(ann, sources.FORGED.format(payload=json.dumps(one).encode())) for one in bad]
    answers = [
        {"cases": [{**case, "plan": plan}], **rest},
        {"cases": [{**case, "plan": 3}], **rest},
        {"cases": [{**case, "reason": "\x1b[2J" + "a" * 9000}], **rest},
    ]
    checked = [
        verified(ann, sources.FORGED.format(payload=json.dumps(a).encode())) for a in answers
    ]
    broken = ask(ann, sources.FORGED.format(payload=b"[" * 100_000))

    for answer in (*refused, broken):
        assert "gave no valid answer" in problem_of(answer, 422, "invalid-input", "source")
    reasons = [one["cases"][0]["reason"] for one in checked]
    assert reasons[0] == "its launch plan is refused: an output lies in an input"
    assert reasons[1].startswith("its launch plan is refused: ")
    assert reasons[2].startswith(" [2Jaaa")
    assert len(reasons[2]) == 5000
    assert checked[0]["compiler"] == " [31m<b>"
    assert checked[0]["cases"][0]["case"] == "permute x=F32[64,256] dims=1,0"


def test_it_needs_the_role_upload(lab: Lab) -> None:
    with client(lab.server, lab.keys["ben"]) as ben:
        refused = ask(ben, sources.COPY)

    assert "the role upload" in problem_of(refused, 403, "forbidden", None)
