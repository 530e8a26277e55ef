"""One request, one verdict: candidates of permute on a server with users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.service.databases import Database
from tests.service.job_requests import CASE
from tests.service.requests import problem_of
from tests.service.uploads.requests import Lab, names, running_lab, uploaded
from tests.service.uploads.sources import LONG, SHORT, TRITON, WRONG
from tests.service.uploads.test_verified_uploads import CUDA, CUDA_LAUNCHES, LAUNCHES

pytestmark = pytest.mark.slow

PATH = "/v1/evaluations"
WAIT = {"prefer": "wait=120"}
OTHER_CASE = {**CASE, "shape": [3, 5]}
FAILS_IF_SQUARE = """
def permute(x, dims):
    if x.shape[0] == x.shape[1]:
        raise ValueError("a square " + 3000 * "x")
    return x.permute(dims).contiguous()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {"bob": database.key("bob", "bench"), "cat": database.key("cat", "call")}
    with running_lab(database, "ann", "dan") as running:
        yield Lab(running.server, {**running.keys, **keys})


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as http:
        yield http


def send(http: httpx.Client, source: str | None = None, **change: Any) -> httpx.Response:
    headers = change.pop("headers", WAIT)
    body = {"op": "permute", "cases": [CASE], "baseline": "torch", **change}
    if source is not None:
        body["source"] = source
    return http.post(PATH, json=body, headers=headers, timeout=150)


def verdict(http: httpx.Client, source: str | None = None, **change: Any) -> dict[str, Any]:
    answer = send(http, source, **change)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["state"] == "done"
    return found


def test_a_slow_source_has_a_ratio_and_is_reused_and_not_kept(http: httpx.Client) -> None:
    first = verdict(http, LONG, name="long")

    assert first["compiled"] is True
    assert first["right"] is True
    assert first["failure"] is None
    assert first["time_us"] > 2000
    if "unconfirmed" not in first["marks"]:
        assert first["ratio_low"] <= first["ratio"] <= first["ratio_high"]
        assert (first["verdict"], first["why"]) == ("slower", "")
    assert first["links"]["job"] == f"/v1/jobs/{first['id'].partition('-')[0]}"
    assert http.get(first["links"]["results"]).status_code == 200
    assert http.get(first["links"]["evaluation"]).json() == {**first, "reused": False}
    assert "ann/long" not in names(http, user="ann")

    again = verdict(http, LONG, name="long")
    fresh = verdict(http, LONG, name="long", fresh=True)

    assert again == {**first, "reused": True}
    assert fresh["id"] != first["id"]


def test_a_source_is_kept_if_asked_for_and_evaluated_by_its_name(http: httpx.Client) -> None:
    kept = verdict(http, SHORT, name="kept", keep=True)

    stored = verdict(http, implementation="ann/kept", cases=[OTHER_CASE])

    assert "ann/kept" in names(http, user="ann")
    assert kept["right"] is stored["right"] is True
    assert stored["implementation"] == "ann/kept"
    assert stored["source_sha256"] == kept["source_sha256"]


def test_a_stored_version_stays_if_its_source_is_evaluated(http: httpx.Client) -> None:
    uploaded(http, SHORT, name="mine")

    assert verdict(http, SHORT, name="mine", cases=[OTHER_CASE])["right"] is True

    assert "ann/mine" in names(http, user="ann")


def test_a_wrong_source_has_no_ratio_and_says_what_to_do(http: httpx.Client) -> None:
    found = verdict(http, WRONG)

    assert (found["compiled"], found["right"]) == (True, False)
    assert found["ratio"] is found["verdict"] is found["time_us"] is None
    assert found["failure"]["kind"] == "wrong_result"
    assert "reference" in found["failure"]["next"]
    assert found["cases"][0]["failure"] == found["failure"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import torch\ndef permute(x, dims:\n", r"source: line 2: SyntaxError: .+"),
        ("import nothing_like_it\n", r"source: line 1: ModuleNotFoundError: .+"),
        ("def other(x):\n    pass\n", r"function: it has no function permute, .+ other"),
        ("def permute(y):\n    pass\n", r"function: line 1: permute must take .+"),
    ],
)
def test_a_source_that_cannot_be_imported_is_a_verdict(
    source: str, text: str, http: httpx.Client
) -> None:
    found = verdict(http, source)

    assert (found["compiled"], found["right"], found["id"]) == (False, False, None)
    assert found["failure"]["kind"] == "import_error"
    assert re.fullmatch(text, found["failure"]["text"])


def test_a_source_that_fails_in_one_of_two_cases_has_no_ratio(http: httpx.Client) -> None:
    found = verdict(http, FAILS_IF_SQUARE, cases=[OTHER_CASE, CASE])

    assert [one["right"] for one in found["cases"]] == [True, False]
    assert found["cases"][0]["time_us"] is not None
    assert found["right"] is False
    assert found["ratio"] is found["time_us"] is None
    assert found["failure"]["kind"] == "error"
    assert 1000 < len(found["failure"]["text"]) <= 2000
    assert "line 4" in found["failure"]["text"]


def test_a_kernel_of_triton_is_right_without_a_gpu_and_has_no_ratio(http: httpx.Client) -> None:
    found = verdict(http, TRITON, baseline=None)

    assert found["right"] is True
    assert "interpreted" in found["marks"]
    assert found["ratio"] is None
    assert found["why"]


def test_a_verified_kernel_without_a_gpu_is_compiled_and_not_checked(http: httpx.Client) -> None:
    cuda = {"verified": True, "language": "cuda", "launches": CUDA_LAUNCHES}

    found = [
        verdict(http, TRITON, verified=True, baseline=None),
        verdict(http, TRITON, verified=True, launches=LAUNCHES, baseline=None),
        verdict(http, CUDA, **cuda, baseline=None),
    ]

    for one in found:
        assert (one["verified"], one["compiled"], one["right"]) == (True, True, None)
        assert one["failure"]["kind"] == "unchecked"
        assert "compiled for sm_90 and inspected: 1 kernel" in one["failure"]["text"]
        assert "a server with a GPU" in one["failure"]["next"]
        assert one["time_us"] is one["ratio"] is one["verdict"] is None
    assert len({one["source_sha256"] for one in found}) == 3
    assert "ann/permute" not in names(http, user="ann")


@pytest.mark.parametrize(
    ("source", "change", "kind", "text"),
    [
        (CUDA.replace("rows;", "columns;"), {"language": "cuda", "launches": CUDA_LAUNCHES},
         "compile_error", r"source: kernel.cu\(3\): error: .+columns.+"),
        (TRITON, {"launches": {"launches": []}}, "import_error", r"launches: the declaration .+"),
        ("import nothing_like_it\n", {}, "import_error", r"source: line 1: ModuleNotFound.+"),
    ],
)  # fmt: skip
def test_a_verified_source_that_cannot_be_used_is_a_verdict(
    source: str, change: dict[str, Any], kind: str, text: str, http: httpx.Client
) -> None:
    found = verdict(http, source, verified=True, **change)

    assert (found["verified"], found["compiled"], found["id"]) == (True, False, None)
    assert found["failure"]["kind"] == kind
    assert re.fullmatch(text, found["failure"]["text"], re.DOTALL)


def test_who_does_not_wait_gets_an_id_to_ask_with(http: httpx.Client) -> None:
    source = SHORT + "# another\n"

    answer = send(http, source, headers={})

    assert answer.status_code == 202, answer.text
    waiting = answer.json()
    assert waiting["state"] in ("waiting", "running")
    assert waiting["right"] is None
    assert answer.headers["location"] == f"{PATH}/{waiting['id']}"
    done = http.get(answer.headers["location"], headers=WAIT, timeout=150)
    assert (done.status_code, done.headers["preference-applied"]) == (200, "wait=120")
    assert done.json()["right"] is True
    assert done.json()["id"] == waiting["id"]


def test_a_request_that_is_sent_again_finds_its_job(http: httpx.Client) -> None:
    headers = {**WAIT, "idempotency-key": "one"}
    first = verdict(http, WRONG, headers=headers)

    again = verdict(http, WRONG, headers=headers)

    assert again == {**first, "reused": True}
    problem_of(send(http, SHORT, headers=headers), 422, "invalid-input", "idempotency-key")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cases": [{**CASE, "params": {"dims": [0, 0]}}]}, "cases.0.dims"),
        ({"cases": None, "source": SHORT}, "body"),
        ({"cases": None, "sweep": {"shapes": [[8, 8]] * 65, "dtypes": ["F32"]}}, "sweep"),
        ({"op": "nothing"}, "op"),
        ({"baseline": "ann/nothing", "source": SHORT}, "baseline"),
        ({"implementation": "ann/nothing"}, "implementation"),
        ({"implementation": "torch"}, "implementation"),
        ({"implementation": "ann/kept", "source": SHORT}, "body"),
        ({}, "body"),
        ({"precision": "long"}, "precision"),
        ({"name": "a b"}, "name"),
        ({"implementation": "ann/kept", "verified": True, "cases": None}, "body"),
        ({"launches": CUDA_LAUNCHES}, "launches"),
        ({"verified": True, "language": "cuda"}, "launches"),
        ({"verified": "yes"}, "verified"),
    ],
)
def test_what_cannot_be_measured_is_a_problem(
    change: dict[str, Any], field: str, http: httpx.Client
) -> None:
    if (sweep := change.get("sweep")) is not None:
        sweep["params"] = {"dims": [[1, 0]]}

    source = {} if field in ("body", "implementation") else {"source": SHORT}
    answer = send(http, **{**source, **change})

    problem_of(answer, 422, "invalid-input", field)


@pytest.mark.parametrize("id_", ["123456789abc-1", "nothing", "12-0", "%00"])
def test_an_id_that_is_none_is_not_found(id_: str, http: httpx.Client) -> None:
    problem_of(http.get(f"{PATH}/{id_}"), 404, "not-found", "id")


def test_sources_need_the_role_upload_and_evaluations_the_role_bench(lab: Lab) -> None:
    with lab.http("bob") as bob, lab.http("cat") as cat:
        problem_of(send(bob, SHORT), 403, "forbidden", "source")
        problem_of(send(cat, SHORT), 403, "forbidden", None)

        found = verdict(bob, implementation="warpcall")

        assert cat.get(f"{PATH}/{found['id']}").json()["right"] is True


def test_an_evaluation_of_a_private_source_is_private(lab: Lab, http: httpx.Client) -> None:
    found = verdict(http, SHORT, name="secret", private=True)

    with lab.http("dan") as dan:
        problem_of(dan.get(f"{PATH}/{found['id']}"), 404, "not-found", "id")


def test_verdicts_fit_the_published_schema(lab: Lab, http: httpx.Client) -> None:
    published = http.get("/openapi.json").json()
    schema = {
        "components": published["components"],
        "$ref": "#/components/schemas/Evaluation",
    }
    validator = jsonschema_rs.validator_for(schema)
    for found in (verdict(http, WRONG), verdict(http, "import nothing_like_it\n")):
        assert found["verified"] is False
        assert [error.message for error in validator.iter_errors(found)] == []
        for field in found:
            assert not validator.is_valid({k: v for k, v in found.items() if k != field})
