"""Jobs that only check results: without cases they have the odd cases of their op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.databases import Database
from tests.service.requests import problem_of
from tests.service.uploads.problem_sources import ROW_NORM
from tests.service.uploads.requests import Lab, added_problem, running_lab
from warpcall_kernels import measuring, ops
from warpcall_kernels.op.odd_cases import odd_cases

CASE = {"shape": [0, 4], "dtype": "F32", "params": {"dims": [1, 0]}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("checks"))})
    with running_lab(database, "ann") as running:
        yield running


def preview(http: httpx.Client, op: str, **fields: Any) -> httpx.Response:
    return http.post("/v1/jobs/preview", json={"op": op, **fields}, timeout=120)


@pytest.mark.parametrize("name", ["permute", "isin"])
def test_a_check_without_cases_has_the_odd_cases_of_the_op(name: str, lab: Lab) -> None:
    op = ops()[name]

    with lab.http("ann") as http:
        found = preview(http, name, precision="check").json()

    keys = [
        measuring.JobCase(op, case.inputs, op.check_params(case.params)).key
        for case in odd_cases(op, small=True)
    ]
    assert found["cases"] == len({*keys}) > 40
    assert found["first_cases"] == [*dict.fromkeys(keys)][: len(found["first_cases"])]


def test_a_check_of_a_problem_has_cases_of_its_sizes(lab: Lab) -> None:
    with lab.http("ann") as http:
        problem = added_problem(http, ROW_NORM)
        found = preview(http, problem["name"], precision="check").json()

    assert found["cases"] > 10
    assert any(":special" in key for key in found["first_cases"])


def test_cases_without_elements_can_be_checked_but_not_timed(lab: Lab) -> None:
    with lab.http("ann") as http:
        checked = preview(http, "permute", cases=[CASE], precision="check")
        timed = preview(http, "permute", cases=[CASE], precision="quick")

    assert checked.json()["cases"] == 1
    assert "there is no time to measure" in problem_of(timed, 422, "invalid-input", "cases.0.shape")


def test_only_a_check_may_have_no_cases(lab: Lab) -> None:
    with lab.http("ann") as http:
        answer = preview(http, "permute", precision="quick")

    assert "give either cases or sweep" in answer.text
    assert answer.status_code == 422


def test_a_check_of_an_op_that_there_is_not_is_refused(lab: Lab) -> None:
    with lab.http("ann") as http:
        problem_of(preview(http, "nothing", precision="check"), 422, "invalid-input", "op")
