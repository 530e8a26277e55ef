"""Nothing is concluded from a time that is no basis for it, whatever the database holds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.job_rows import MANY, caller, checked, request
from tests.service.stored import implementation, result
from warpcall.jobs.results import Measurement, can_conclude, status_shown, why_no_verdict
from warpcall_bench.jobs import (
    answers,
    comparison,
    exports,
    lifecycle,
    measurements,
    spread,
    submissions,
)
from warpcall_bench.jobs.measurements import basis_for_verdict
from warpcall_bench.jobs.tables import Job
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.summaries.board import board
from warpcall_bench.summaries.regression import regression
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

FASTER = {"ratio": 0.5, "low": 0.49, "high": 0.51, "n": 9, "verdict": "faster"}
Change = Mapping[str, Any]
TAGGED: list[Change] = [
    {"tags": ["suspect"]},
    {"tags": ["not captured", "interpreted"]},
    {"tags": ["unconfirmed"]},
]
WITHOUT_BASIS: list[Change] = [
    *TAGGED,
    *({"status": status} for status in ("invalid", "wrong_result", "timeout", "crashed", "error")),
]


def name_of(change: Change) -> str:
    return str(change.get("status") or change["tags"][-1])


def stored(
    store: Store, *cases: Sequence[Change], names: Sequence[str] = ("torch", "mine"), **fields: Any
) -> str:
    """The id of a job whose rows, by case and implementation, differ by these from valid ones."""
    with store.write() as session:
        asked = request(fresh=True, implementations=[*names], **fields)
        job, _ = submissions.submit(session, caller("ann"), asked, checked(len(cases)), None, MANY)
        session.flush()
        job.environment = "a machine"
        for position, changes in enumerate(cases):
            rows = [
                {
                    **implementation(name, [2.0 + number] * 9),
                    "tags": [],
                    "relative": FASTER if number else None,
                    **change,
                }
                for number, (name, change) in enumerate(zip(names, changes, strict=True))
            ]
            limit = implementation("copy", [2.0] * 9)
            given = result(9, position, implementations=rows, limit=limit)
            lifecycle.save_case(session, job, position, given)
        lifecycle.end_job(session, job, "succeeded", "ok", "")
        return job.id


def conclusions(row: Measurement) -> set[object]:
    return {row.ratio, row.ratio_low, row.ratio_high, row.verdict}


def rows_of(store: Store, job_id: str) -> list[Measurement]:
    with store.read() as session:
        return measurements.measurements(session, submissions.find(session, caller("ann"), job_id))


@pytest.mark.parametrize("change", WITHOUT_BASIS, ids=name_of)
def test_there_is_no_verdict_on_a_row_without_a_basis(change: Change, store: Store) -> None:
    job = stored(store, [{}, change], [{}, {}])

    _, row, _, valid = rows_of(store, job)

    assert conclusions(row) == {None}
    assert (row.status, row.tags) == (change.get("status", "ok"), change.get("tags", []))
    assert (valid.verdict, valid.ratio) == ("faster", 0.5)


@pytest.mark.parametrize("change", WITHOUT_BASIS, ids=name_of)
def test_there_is_no_verdict_relative_to_a_row_without_a_basis(
    change: Change, store: Store
) -> None:
    job = stored(store, [{}, {}], [change, {}])

    _, valid, _, row = rows_of(store, job)

    assert conclusions(row) == {None}
    assert valid.verdict == "faster"


@pytest.mark.parametrize("changes", [[{"tags": ["suspect"]}, {}], [{}, {"tags": ["suspect"]}]])
def test_cases_histories_and_exports_follow_the_rule(changes: list[Change], store: Store) -> None:
    job_id = stored(store, [{}, {}], changes)

    with store.read() as session:
        case = answers.find_case(session, caller("ann"), job_id, 1)
        history = [
            answers.history(session, caller("ann"), "permute", "mine", key, 10).points[0]
            for key in ("case 0", "case 1")
        ]
        steps = exports.begin(session, caller("ann"), job_id, "csv", False)
        text = b"".join(step(session) for step in steps).decode()
    written = [row["verdict"] for row in csv.DictReader(io.StringIO(text))]
    assert conclusions(case.measurements[1]) == {None}
    assert [point.measurement.verdict for point in history] == ["faster", None]
    assert written == ["", "faster", "", ""]


@pytest.mark.parametrize("change", TAGGED, ids=name_of)
def test_a_regression_check_leaves_open_what_has_no_basis(change: Change, store: Store) -> None:
    job_id = stored(store, [{}, change], [{}, {}])

    with store.read() as session:
        check = regression(session, caller("ann"), job_id, 0.01)

    undecided, passed = check.rows
    assert (undecided.outcome, undecided.ratio) == ("undecided", None)
    assert undecided.why == f"no verdict on times that are {name_of(change)}: those of mine"
    assert passed.outcome == "passed"


@pytest.mark.parametrize("change", TAGGED, ids=name_of)
def test_results_without_a_basis_are_below_the_board_without_a_rank(
    change: Change, store: Store
) -> None:
    stored(store, [{}, {**change, "median_us": 1.0}])
    stored(store, [{"median_us": 3.0}, {**change, "median_us": 1.5}])

    with store.read() as session:
        (standing,) = board(session, caller("bob"), "permute", "", "").standings

    assert [(one.implementation, one.rank) for one in standing.entries] == [("torch", 1)]
    (unranked,) = standing.unranked
    assert (unranked.implementation, unranked.rank, unranked.median_us) == ("mine", None, 1.0)
    assert unranked.tags == change["tags"]


def test_a_valid_result_counts_even_if_a_better_one_is_suspect(store: Store) -> None:
    suspect = {"tags": ["suspect"], "median_us": 1.0}
    stored(store, [suspect], names=["torch"])
    stored(store, [{}], names=["torch"])

    with store.read() as session:
        found = board(session, caller("bob"), "permute", "", "case 0")

    assert [(one.rank, one.median_us) for one in found.standings[0].entries] == [(1, 2.0)]
    assert found.standings[0].unranked == []
    assert len(found.steps) == 1


@pytest.mark.parametrize("change", TAGGED, ids=name_of)
@pytest.mark.parametrize("first", [True, False])
def test_two_jobs_are_not_compared_by_rows_without_a_basis(
    first: bool, change: Change, store: Store
) -> None:
    tagged, valid = stored(store, [{}, change]), stored(store, [{}, {}])
    a, b = (tagged, valid) if first else (valid, tagged)
    with store.read() as session:
        pair = comparison.pair_of(session, caller("ann"), a, b)
        (part,) = pair.parts()
        comparison.lane_request(session, pair, part)
    measured = {
        "a_us": 1.0,
        "b_us": 2.0,
        "ratio": 2.0,
        "ratio_low": 1.9,
        "ratio_high": 2.1,
        "verdict": "slower",
        "relative_to_copy": True,
        "margin": 0.01,
        "repeats": 9,
    }
    rows = [{"implementation": name, **measured} for name in ("torch", "mine")]

    text = pair.rows(part, {"cases": [{"rows": rows, "only_a": [], "only_b": []}]})

    torch, mine = json.loads(b"[" + text + b"]")
    assert (torch["verdict"], torch["ratio"], torch["why"]) == ("slower", 2.0, "")
    assert {mine[name] for name in ("verdict", "ratio", "ratio_low", "ratio_high")} == {None}
    assert mine["why"] == f"{name_of(change)} in {'a' if first else 'b'}"
    assert (mine["a_us"], mine["b_us"]) == (1.0, 2.0)


def test_the_rule_in_sql_is_the_rule(store: Store) -> None:
    changes: list[Change] = [{}, *WITHOUT_BASIS, {"tags": ["not captured"]}, {"error": "suspect"}]
    names = [f"implementation-{number}" for number in range(len(changes))]
    for name, change in zip(names, changes, strict=True):
        stored(store, [change], names=[name])

    with store.read() as session:
        chosen = session.scalars(sa.select(Row.implementation).where(basis_for_verdict())).all()
    expected = [
        name
        for name, change in zip(names, changes, strict=True)
        if can_conclude(str(change.get("status", "ok")), change.get("tags", []))
    ]
    assert sorted(chosen) == sorted(expected)
    assert len(expected) == 3


def test_margins_between_jobs_are_not_learned_from_times_without_a_basis(store: Store) -> None:
    names = ["torch", "mine"]
    for _ in range(3):
        job = stored(store, [{}, {"tags": ["unconfirmed"]}], names=names)
        with store.write() as session:
            rows = sa.update(Row).values(source_sha256="0" * 64)
            session.execute(rows.where(Row.job_number == stored_number(session, job)))

    with store.read() as session:
        everything = spread.of_environment(session, "a machine", [])
        series = {name: measurements.series("permute", name, "case 0") for name in names}
        of_series = spread.of_series(session, "a machine", series.values(), [])

    assert len(everything["groups"]) == 1
    assert [*of_series] == [series["torch"]]


def stored_number(session: Session, job_id: str) -> int:
    return session.scalars(sa.select(Job.number).where(Job.id == job_id)).one()


def test_the_first_reason_is_named() -> None:
    assert why_no_verdict("ok", ["not captured"]) == ""
    assert why_no_verdict("invalid", ["suspect"]) == "invalid"
    assert why_no_verdict("ok", ["interpreted", "suspect"]) == "suspect"
    assert [status_shown("ok", 1.0), status_shown("ok", None)] == ["", "right"]
    assert status_shown("invalid", 1.0) == "invalid"


def test_jobs_that_were_stored_before_keep_their_rows(store: Store) -> None:
    job_id = stored(store, [{}, {"tags": ["suspect"]}])

    with store.read() as session:
        job = session.scalars(sa.select(Job).where(Job.id == job_id)).one()
        row = session.get_one(Row, (job.number, 0, "mine"))

    assert '"verdict": "faster"' in row.summary  # what is shown follows the rule, not the row
    assert rows_of(store, job_id)[1].verdict is None
