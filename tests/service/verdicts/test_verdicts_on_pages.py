"""Pages show no verdict on times that are no basis for one, and say which implementations failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.pages import lab
from tests.service.job_rows import caller
from warpcall.jobs.results import NOT_ON_GPU, TAGS_WITHOUT_VERDICT
from warpcall_bench.jobs import comparison, lifecycle, submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.pages.board import board_page
from warpcall_bench.pages.case import case_page
from warpcall_bench.pages.compare import comparison_rows, regression_page
from warpcall_bench.pages.history import history_page
from warpcall_bench.pages.results import STATUSES, TAGS
from warpcall_bench.pages.view import View
from warpcall_bench.programs import job_check
from warpcall_bench.runs.results import Status
from warpcall_bench.runs.runner import Outcome
from warpcall_service.store.database import Store

NAMES = ["torch", "warpcall", "ann/mine"]
SPEEDS = {"torch": 0.4, "warpcall": 0.9, "ann/mine": 0.8}
VIEW = View("./", "/jobs", caller("ann"))
VERDICT = re.compile(r"\b(faster|slower|undecided)\b")
Change = Mapping[str, Any]
Shown = Callable[[Session], str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(None, tmp_path)
    found.migrate()
    yield found
    found.close()


def measured(
    store: Store,
    changes: Mapping[str, Change],
    cases: Sequence[int] | None = None,
    *,
    precision: str = "standard",
    **of_case: Any,
) -> str:
    """The id of a job whose rows of these implementations differ by these from valid ones.

    Args:
        cases: positions of the cases in which they differ; None means all four.
        of_case: members of each case's result.
    """
    keys = lab.permute_cases((64, 2048))
    names = [name for name in NAMES if name != "ann/mine"]
    job = lab.submit(store, "ann", "permute", keys, names, precision=precision)
    with store.write() as session:
        row = submissions.find(session, caller("ann"), job)
        row.implementations = '["torch", "warpcall", "ann/mine"]'
    given = {}
    for position, one in enumerate(keys):
        random = np.random.default_rng(position)
        made = lab.result(one["key"], one["nbytes"], NAMES, SPEEDS, 120, random, "")
        if cases is None or position in cases:
            made["implementations"] = [
                {**found, **changes.get(found["name"], {})} for found in made["implementations"]
            ]
        given[position] = {"implementations": made["implementations"], **of_case}
    assert lab.measure(store, SPEEDS, changes=given) == job
    with store.write() as session:
        row = submissions.find(session, caller("ann"), job)
        row.state = "running"
        lifecycle.end_run(session, row, Outcome("ok", "", (), 1.0, 1.0), counts=True)
    return job


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def job_text(store: Store, job: str) -> str:
    with store.read() as session:
        return text_of(lab.job_page(session, VIEW, job))


def rows_of(page: str, name: str) -> list[str]:
    """The rows of tables that begin with a name."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    return [found for row in rows if (found := text_of(row)).startswith(name)]


@pytest.mark.parametrize("tag", TAGS_WITHOUT_VERDICT)
def test_a_row_without_a_basis_has_no_verdict_on_any_page(store: Store, tag: str) -> None:
    job = measured(store, {"ann/mine": {"tags": [tag]}})

    with store.read() as session:
        page = lab.job_page(session, VIEW, job)
        case = case_page(session, VIEW, job, 0)

    for shown in (page, case):
        found = [row for row in rows_of(shown, "ann/mine") if "µs" not in row]
        assert found
        assert not any(VERDICT.search(row) for row in found), found
    why = f"ann/mine: no verdict in 4 of 4 cases, because its times are {tag}."
    if tag in NOT_ON_GPU:
        why = "ann/mine: right in 4 of 4 cases, not timed: no GPU."
    assert why in text_of(page)
    assert "without a verdict in 4 of 4 cases" in text_of(page)
    assert re.search(r"warpcall 0\.\d+× the time .* faster in 4 of 4 cases", text_of(page))
    assert 'class="lead"' not in page + case
    assert tag in text_of(case)


@pytest.mark.parametrize(
    "change", [{"tags": ["suspect"]}, {"status": "wrong_result", "error": "wrong in 3 elements"}]
)
def test_nothing_is_compared_with_a_first_implementation_without_a_basis(
    store: Store, change: Change
) -> None:
    job = measured(store, {"torch": change})

    with store.read() as session:
        page = lab.job_page(session, VIEW, job)
        case = case_page(session, VIEW, job, 0)

    why = "the times of torch are suspect" if "tags" in change else "torch has no valid time"
    assert f"warpcall: no verdict in 4 of 4 cases, because {why}." in text_of(page)
    for name in ("warpcall", "ann/mine"):
        for shown in (page, case):
            assert not any(VERDICT.search(row) for row in rows_of(shown, name))
    assert 'class="lead"' not in page + case
    assert not re.search(r'class="r [fs]\d"', page)


def test_a_partial_job_is_amber_and_says_which_implementations_failed(store: Store) -> None:
    changes = {"ann/mine": {"status": "timeout", "error": "no end within 10 s in case 1"}}
    job = measured(store, changes, [1, 2])

    with store.read() as session:
        page = lab.job_page(session, VIEW, job)

    assert '<span class="badge partial">partial</span>' in page
    detail = "ann/mine has no time in 2 of 4 cases: timeout in 2."
    assert text_of(page).count(detail) == 1
    assert '<div class="note bad">' not in page
    assert text_of(page).count("did not end in time") == 4  # two rows, two cells
    assert "faster in 2, without a time in 2 of 4 cases" in text_of(page)


def test_results_that_were_only_checked_are_right(store: Store) -> None:
    times = {"median_us": None, "ci_low_us": None, "ci_high_us": None, "relative": None}
    right: Change = {**times, "gb_per_s": None, "share_of_limit": None}
    changes = {"torch": right, "warpcall": right, "ann/mine": right}
    checked: Any = {"precision": "check", "rounds": 0, "converged": False, "limit": None}
    job = measured(store, changes, **checked)
    of_mine = {**right, "status": "wrong_result"}
    wrong = measured(store, changes | {"ann/mine": of_mine}, **checked)

    with store.read() as session:
        page, case = lab.job_page(session, VIEW, job), case_page(session, VIEW, job, 0)
    assert '<span class="badge succeeded">succeeded</span>' in page
    assert "ann/mine: right in 4 of 4 cases." in text_of(page)
    for name in NAMES:
        assert f"{name} right in 4 of 4 cases" in text_of(page)
    assert not re.search("beaten|Compared with|verdict|takes longer", text_of(page))
    assert "not timed" in text_of(case)
    assert "No rounds are stored" not in text_of(case)
    assert "wrong" not in text_of(page)
    assert rows_of(case, "ann/mine")[0].startswith("ann/mine right")
    text = job_text(store, wrong)
    assert "ann/mine not right in 4 of 4 cases" in text
    assert "ann/mine is not known to be right in 4 of 4 cases: wrong_result in 4." in text


def test_a_kernel_that_needs_a_gpu_is_not_called_wrong(store: Store) -> None:
    error = "needs a GPU: not checked"
    job = measured(store, {"ann/mine": {"status": "unchecked", "error": error}})

    with store.read() as session:
        page = lab.job_page(session, VIEW, job)

    assert rows_of(page, "ann/mine")[0] == "ann/mine – not checked in 4 of 4 cases"
    assert "not checked" in rows_of(page, "ann/mine")[1]
    assert '<span class="wrong">not checked</span>' not in page
    assert "wrong result" not in text_of(page)


def test_a_table_is_from_the_side_of_an_upload_that_others_are_compared_with(store: Store) -> None:
    names = ["ann/mine", "torch", "copy"]
    lab.submit(store, "ann", "permute", lab.permute_cases((1024,)), ["warpcall", *names[1:]])
    with store.write() as session:
        session.execute(sa.update(Job).values(implementations=json.dumps(names)))
    job = lab.measure(store, {"ann/mine": 0.5, "torch": 0.2, "copy": 1.0})

    with store.read() as session:
        page = lab.job_page(session, VIEW, job)

    assert "ann/mine: faster than torch in 2 of 2 cases; it typically takes 0.40x" in page
    assert "<h2>ann/mine compared with</h2>" in page
    of_torch, of_copy = (rows_of(page, name)[0] for name in names[1:])
    assert re.search(r"^torch 0\.40× the time .* faster in 2 of 2 cases$", of_torch)
    assert re.search(r"^copy 2\.0\d?× the time .* 50 % of the limit is reached", of_copy)
    assert not VERDICT.search(of_copy)


def test_a_history_concludes_nothing_from_times_without_a_basis(store: Store) -> None:
    case = "permute x=BF16[64,64] dims=1,0"
    for _ in range(3):
        measured(store, {"ann/mine": {"tags": ["suspect"]}})
    measured(store, {"ann/mine": {"status": "invalid"}})

    with store.read() as session:
        page = history_page(session, VIEW, "permute", "ann/mine", case)

    assert 'class="lead"' not in page
    assert "<svg" not in page
    assert text_of(page).count("suspect") == 3
    assert "invalid time" in text_of(page)


def test_a_board_shows_results_without_a_basis_below_the_others(store: Store) -> None:
    case = "permute x=BF16[64,64] dims=1,0"
    measured(store, {"ann/mine": {"tags": ["suspect"]}, "torch": {"tags": ["unconfirmed"]}})

    with store.read() as session:
        page = board_page(session, VIEW, ["permute"], "permute", "", case)
        cases = board_page(session, VIEW, ["permute"], "permute", "", "")

    rows = [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    ranked = [row.split()[:2] for row in rows if "NVIDIA" not in row][1:4]
    assert ranked[0] == ["1", "warpcall"]
    assert [row[0] for row in ranked[1:]] == ["–", "–"]
    assert {row[1] for row in ranked[1:]} == {"ann/mine", "torch"}
    assert "warpcall leads alone in 4 of 4 cases" in text_of(cases)


def test_a_board_on_which_nothing_has_a_rank_has_no_leader(store: Store) -> None:
    changes = {name: {"tags": ["interpreted"]} for name in NAMES}
    measured(store, changes)

    with store.read() as session:
        cases = board_page(session, VIEW, ["permute"], "permute", "", "")
        page = board_page(
            session, VIEW, ["permute"], "permute", "", "permute x=BF16[64,64] dims=1,0"
        )

    assert "leads" not in text_of(cases).replace("leads alone shares the lead", "")
    assert "interpreted" in text_of(page)


def test_a_regression_page_leaves_open_what_has_no_basis(store: Store) -> None:
    job = measured(store, {"warpcall": {"tags": ["suspect"]}})

    with store.read() as session:
        page = text_of(regression_page(session, VIEW, job, 0.01))

    assert "It is undecided whether warpcall is slower than torch in 4 of 4 cases." in page
    assert "no verdict on times that are suspect: those of warpcall" in page


def test_two_jobs_are_not_compared_by_rows_without_a_basis(store: Store) -> None:
    ids = [measured(store, {"ann/mine": change}) for change in ({}, {"tags": ["suspect"]})]

    with store.read() as session:
        pair = comparison.pair_of(session, caller("ann"), *ids)
        text = pair.head()
        for part in pair.parts():
            asked = json.loads(comparison.lane_request(session, pair, part)[4:])
            text += pair.rows(part, job_check.compare_jobs(asked["compare"], "cpu"))
        page = comparison_rows(session, VIEW, text + pair.tail())

    assert "No difference is certain in 12 rows." in text_of(page)
    assert text_of(page).count("none: suspect in b") == 4
    assert "No margin is known for 8 rows" in text_of(page)


def test_every_status_and_tag_has_words() -> None:
    assert {*STATUSES} == {*get_args(Status)} - {"ok"}
    assert {*TAGS} >= {*TAGS_WITHOUT_VERDICT}
