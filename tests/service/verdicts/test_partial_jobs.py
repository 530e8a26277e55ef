"""A job in which an implementation failed in a case says so by its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from tests.service.job_rows import DEVICES, MANY, caller, checked, claim, request
from tests.service.stored import implementation, result
from warpcall.jobs import ExitClass
from warpcall_bench.jobs import answers, lifecycle, submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.runner import Outcome
from warpcall_bench.summaries.board import board, latest_op
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

Statuses = Mapping[str, Sequence[str]]


def run(store: Store, statuses: Statuses, *, without_times: bool = False, **fields: Any) -> Job:
    """The job at the end of a run that measured these statuses, by implementation and case."""
    cases = max(map(len, statuses.values()))
    with store.write() as session:
        asked = request(implementations=[*statuses], **fields)
        made, _ = submissions.submit(session, caller("ann"), asked, checked(cases), None, MANY)
        job_id = made.id
    job = claim(store)
    assert job is not None
    with store.write() as session:
        row = session.get_one(Job, job.number)
        row.environment = "a machine"
        for position in range(cases):
            rows = [
                implementation(name, [2.0] * 9, found[position]) for name, found in statuses.items()
            ]
            for one in rows if without_times else ():
                one["median_us"] = None
            limit = implementation("copy", [2.0] * 9)
            given = result(9, 0, implementations=rows, limit=limit)
            lifecycle.save_case(session, row, position, given)
        lifecycle.end_run(session, row, outcome(), counts=True)
        assert row.id == job_id
        return row


def outcome() -> Outcome:
    return Outcome("ok", "", (), device_s=1.0, took_s=1.0, device_wait_s=0.25, compile_s=0.5)


def ended(job: Job) -> tuple[str, str | None, str]:
    return job.state, job.exit_class, job.detail


def test_a_job_with_a_time_for_each_implementation_in_each_case_succeeded(store: Store) -> None:
    job = run(store, {"a": ["ok", "ok"], "b": ["ok", "ok"]})

    assert ended(job) == ("succeeded", "ok", "")


def test_a_job_in_which_an_implementation_failed_is_partial_and_says_which(store: Store) -> None:
    statuses = ["ok", "wrong_result", "timeout", "ok"]

    job = run(store, {"torch": ["ok"] * 4, "mine": statuses})

    detail = "mine has no time in 2 of 4 cases: timeout in 1, wrong_result in 1"
    assert ended(job) == ("partial", "wrong_result", detail)


def test_the_first_implementation_counts_as_any_other(store: Store) -> None:
    job = run(store, {"torch": ["oom"], "mine": ["ok"]})

    assert ended(job) == ("partial", "oom", "torch has no time in 1 of 1 case: oom in 1")


def test_the_detail_is_short_however_many_implementations_failed(store: Store) -> None:
    failing = {f"{'x' * 60}{number}": ["crashed"] * 3 for number in range(6)}

    job = run(store, {"torch": ["ok"] * 3, **failing})

    assert job.state == "partial"
    assert job.detail.count("crashed in 3") == 3
    assert job.detail.endswith("; and 3 more implementations")
    assert len(job.detail) <= lifecycle.MAX_DETAIL


@pytest.mark.parametrize(
    ("status", "state"),
    [("wrong_result", "failed"), ("timeout", "failed"), ("unchecked", "failed"), ("invalid",) * 2],
)
def test_a_job_without_any_time_is_not_partial(status: str, state: str, store: Store) -> None:
    job = run(store, {"torch": [status], "mine": [status]})

    detail = "no implementation could be measured in any case"
    assert ended(job) == (state, status, detail)


def test_a_check_in_which_nothing_is_right_says_so(store: Store) -> None:
    job = run(store, {"mine": ["wrong_result"]}, without_times=True, precision="check")

    assert ended(job) == (
        "failed",
        "wrong_result",
        "no implementation is known to be right in any case",
    )


def test_a_check_in_which_nothing_is_wrong_succeeded_and_counts_what_was_not_checked(
    store: Store,
) -> None:
    statuses = {"mine": ["ok", "unchecked", "unchecked"], "torch": ["ok"] * 3}

    job = run(store, statuses, without_times=True, precision="check")

    detail = "mine is not known to be right in 2 of 3 cases: unchecked in 2"
    assert ended(job) == ("succeeded", "ok", detail)
    assert answers.remarks(job) == [detail]


@pytest.mark.parametrize("statuses", [["unchecked", "unchecked"], ["unchecked", "wrong_result"]])
def test_a_check_of_which_an_implementation_is_right_nowhere_or_wrong_somewhere_is_partial(
    statuses: list[str], store: Store
) -> None:
    rows = {"torch": ["ok", "ok"], "mine": statuses}

    job = run(store, rows, without_times=True, precision="check")

    assert job.state == "partial"
    assert job.detail.startswith("mine is not known to be right in 2 of 2 cases: ")


def test_every_status_of_a_row_is_an_exit_class(store: Store) -> None:
    for status in {*lifecycle.WORST_FIRST} - {"ok"}:
        assert run(store, {"torch": ["ok"], "mine": [status]}, fresh=True).exit_class == status
    assert {*lifecycle.WORST_FIRST} < {*get_args(ExitClass)}


def test_results_without_times_are_right(store: Store) -> None:
    right = run(store, {"a": ["ok"], "b": ["ok"]}, without_times=True)
    some = run(store, {"a": ["ok", "ok"], "b": ["wrong_result", "ok"]}, without_times=True)

    assert ended(right) == ("succeeded", "ok", "")
    assert some.state == "partial"
    assert some.detail == "b is not known to be right in 1 of 2 cases: wrong_result in 1"


def test_a_partial_job_does_not_answer_the_same_question_again(store: Store) -> None:
    right = run(store, {"a": ["ok"], "b": ["ok"]})
    partial = run(store, {"a": ["ok"], "c": ["timeout"]})

    def answered(*names: str) -> str:
        asked = request(implementations=[*names])
        with store.write() as session:
            job, _ = submissions.submit(session, caller("ann"), asked, checked(), None, MANY)
            return job.id

    assert answered("a", "b") == right.id
    assert answered("a", "c") != partial.id


def test_the_valid_rows_of_a_partial_job_are_on_the_board(store: Store) -> None:
    run(store, {"torch": ["ok"], "mine": ["wrong_result"]})

    with store.read() as session:
        assert latest_op(session, caller("bob")) == "permute"
        found = board(session, caller("bob"), "permute", "", "")
    assert found.devices == ["a machine"]
    (standing,) = found.standings
    assert [entry.implementation for entry in standing.entries] == ["torch"]


def test_partial_jobs_are_listed_by_their_state_and_say_why_in_their_remarks(
    store: Store,
) -> None:
    job = run(store, {"torch": ["ok"], "mine": ["crashed"]})
    run(store, {"torch": ["ok"]})

    with store.read() as session:
        wanted = submissions.Filter(state="partial")
        listed = answers.jobs(session, caller("ann"), wanted, DEVICES).jobs
        row = session.scalars(sa.select(Job).where(Job.id == job.id)).one()
        remarks = answers.remarks(row)
    assert [one.id for one in listed] == [job.id]
    assert remarks == ["mine has no time in 1 of 1 case: crashed in 1"]
