"""What one or more jobs say of a regression, how a check reads as Markdown, which stored jobs belong
to a check, and who may read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pages import lab
from tests.service.job_rows import caller
from warpcall.errors import InvalidInput, NotFound
from warpcall.jobs.results import ComparedRow, Comparison, Measurement, Results
from warpcall.regressions import (
    ALLOWED,
    MOST_ROWS,
    Outcome,
    Regression,
    first_of,
    judge,
    judge_same,
    judge_stored,
    tag_of_repeats,
)
from warpcall_bench.summaries.regression import regression
from warpcall_service.store.database import Store

BASE, HEAD = "ann/old", "ann/new"
CASE = "permute x=F32[8,8] dims=1,0"
# Intervals of the ratio, with 1 % allowed.
SLOWER, WIDE, SAME, FASTER = (1.02, 1.04), (0.99, 1.03), (0.996, 1.004), (0.7, 0.8)
NAMES = ["torch", "warpcall", "copy"]
HEAD_FASTER, HEAD_SLOWER = {"torch": 0.5, "warpcall": 0.9}, {"torch": 0.9, "warpcall": 0.5}


def measurement(case: str, name: str, us: float | None, **other: Any) -> Measurement:
    values: dict[str, Any] = dict.fromkeys(Measurement.__dataclass_fields__)
    values |= {"position": 0, "case": case, "implementation": name, "n": 9, "tags": []}
    status = "error" if us is None else "ok"
    return Measurement(**{**values, "status": status, "median_us": us, **other})


def job(
    id_: str,
    cases: Mapping[str, tuple[float, float] | None],
    *,
    verdict: str = "slower",
    broken: str = "",
) -> Results:
    """A job with the interval of the ratio for each case; `broken` has no time."""
    rows = []
    for case, interval in cases.items():
        low, high = interval or (None, None)
        middle = None if low is None or high is None else (low + high) / 2
        times = {name: None if name == broken else 10.0 for name in (BASE, HEAD)}
        rows.append(measurement(case, BASE, times[BASE], error="no | kernel\n<b>"))
        ratios = {"ratio": middle, "ratio_low": low, "ratio_high": high, "verdict": verdict}
        rows.append(measurement(case, HEAD, times[HEAD], error="no | kernel\n<b>", **ratios))
    return Results(
        id=id_,
        state="succeeded",
        environment=None,
        fingerprint={"device": "NVIDIA H200"},
        remarks=[],
        measurements=rows,
        cases=[],
    )


def judged(*intervals: tuple[float, float] | None, **options: Any) -> Regression:
    jobs = [job(f"job{n}", {CASE: one}, **options) for n, one in enumerate(intervals)]
    return judge(jobs, "permute", BASE, HEAD)


@pytest.mark.parametrize(
    ("intervals", "outcome"),
    [
        ([SAME], "passed"),
        ([FASTER], "passed"),
        ([SLOWER], "undecided"),
        ([WIDE], "undecided"),
        ([None], "undecided"),
        ([SLOWER, SLOWER], "slower"),
        ([SLOWER, SAME], "undecided"),
        ([SLOWER, SAME, SAME], "undecided"),
        ([SLOWER, SAME, SLOWER], "undecided"),
        ([WIDE, SLOWER], "undecided"),
        ([WIDE, SLOWER, SLOWER], "slower"),
        ([WIDE, SAME], "passed"),
        ([WIDE, WIDE, WIDE], "undecided"),
    ],
)
def test_a_case_is_slower_only_if_two_jobs_find_it(
    intervals: Sequence[tuple[float, float] | None], outcome: Outcome
) -> None:
    found = judged(*intervals)

    assert (found.outcome, found.rows[0].outcome) == (outcome, outcome)
    assert found.rows[0].jobs == len(intervals)
    assert bool(found.rows[0].why) is (outcome == "undecided")


@pytest.mark.parametrize(("allowed", "outcome"), [(0.05, "passed"), (0.03, "undecided")])
def test_what_is_allowed_is_not_slower(allowed: float, outcome: Outcome) -> None:
    jobs = [job(id_, {CASE: SLOWER}) for id_ in "ab"]

    assert judge(jobs, "permute", BASE, HEAD, allowed).outcome == outcome


def test_a_head_without_a_time_has_failed_and_a_base_without_one_decides_nothing() -> None:
    head, base = judged(SAME, broken=HEAD), judged(None, broken=BASE)

    assert (head.outcome, base.outcome) == ("failed", "undecided")
    assert (head.rows[0].why, base.rows[0].why) == (
        "ann/new: no | kernel\n<b>",
        "ann/old: no | kernel\n<b>",
    )
    assert "ann/new has no time in 1 of 1 case." in head.sentence


@given(st.lists(st.sampled_from([SLOWER, WIDE, SAME, FASTER, None]), min_size=1, max_size=3))
def test_a_faster_job_more_never_makes_a_case_slower(
    intervals: list[tuple[float, float] | None],
) -> None:
    before, after = judged(*intervals), judged(*intervals, FASTER)

    order = ("passed", "undecided", "slower")
    assert order.index(after.outcome) <= order.index(before.outcome)


def test_the_worst_cases_come_first_and_give_the_outcome() -> None:
    first = job("one", {"a": SAME, "b": WIDE, "c": SLOWER, "d": (1.2, 1.3), "e": FASTER})
    second = job("two", {"b": WIDE, "c": SLOWER, "d": (1.2, 1.3)})

    found = judge([first, second], "permute", BASE, HEAD)

    assert [row.case for row in found.rows] == ["d", "c", "b", "a", "e"]
    assert found.outcome == "slower"
    assert found.sentence == "ann/new is slower than ann/old in 2 of 5 cases."
    assert (found.jobs, found.device) == (["one", "two"], "NVIDIA H200")
    assert [row["case"] for row in found.to_rows()] == ["d", "c", "b", "a", "e"]


def test_stored_times_decide_only_where_the_noise_between_two_runs_is_known() -> None:
    def compared(id_: str, margin: float | None) -> Comparison:
        low, high = SLOWER
        row = ComparedRow(
            case=CASE,
            implementation=HEAD,
            a_us=1.0,
            b_us=1.03,
            ratio=1.03,
            ratio_low=low,
            ratio_high=high,
            verdict="slower" if margin is not None and margin < 0.02 else "undecided",
            relative_to_copy=True,
            margin=margin,
            repeats=9,
        )
        other = {**row.to_dict(), "implementation": "torch"}
        rows = [ComparedRow(**other), row]
        return Comparison(
            a="old", b=id_, same_environment=True, differences={}, rows=rows, only_a=[], only_b=[]
        )

    known, noise, unknown = (
        judge_stored([compared("x", margin), compared("y", margin)], "permute", HEAD, None)
        for margin in (0.01, 0.05, None)
    )

    assert (known.outcome, noise.outcome, unknown.outcome) == ("slower", "undecided", "undecided")
    assert noise.rows[0].why == "jobs of the same code differ by as much"
    assert unknown.rows[0].why == "no margin between two runs is known here"
    assert (known.base, known.jobs) == ("the job old", ["x", "y"])
    assert len(known.rows) == 1


def test_the_same_implementation_twice_passes() -> None:
    found = judge_same("permute", BASE)

    assert (found.outcome, found.jobs, found.rows) == ("passed", [], [])
    assert found.to_markdown() == (
        "### Warpcall: permute passed\n\n"
        "ann/old is compared with itself, so nothing was measured.\n\n"
    )


def test_markdown_fits_a_pull_request_and_has_no_markup_of_users() -> None:
    cases = {f"permute x=F32[8,{n}] dims=1,0 `|`": SAME for n in range(MOST_ROWS + 3)}
    found = judge([job("one", cases, broken=HEAD)], "permute", BASE, HEAD)

    text = found.to_markdown("http://gpu-1:8000/jobs/")

    table = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(table) == MOST_ROWS
    assert "3 more cases are not shown." in text
    long = judge(
        [job("one", {f"{n} {'x' * 4000}": SAME for n in range(20)})], "permute", BASE, HEAD
    )
    assert len(long.to_markdown("http://gpu-1:8000/jobs/")) < 65_536, "what GitHub takes"
    assert "6 more cases are not shown." in long.to_markdown()
    assert "[one](http://gpu-1:8000/jobs/one)" in text
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert all(line.replace("\\|", "").count("|") == 7 for line in table)
    assert "**failed**: ann/new: no \\| kernel \\<b\\>" in table[0]


def test_a_repeated_job_names_the_first_one_in_a_tag() -> None:
    assert first_of(["nightly", tag_of_repeats("3f2a91c0")]) == "3f2a91c0"
    assert first_of(["nightly"]) is None


def measured(store: Store, speeds: dict[str, float], user: str = "ann", **fields: object) -> str:
    lab.submit(store, user, "permute", lab.permute_cases((64,)), NAMES, **fields)
    return lab.measure(store, speeds)


def outcome_of(store: Store, job: str, user: str = "ann", allowed: float = ALLOWED) -> str:
    with store.read() as session:
        return regression(session, caller(user), job, allowed).outcome


def test_the_second_implementation_is_checked_against_the_first(store: Store) -> None:
    faster, slower = measured(store, HEAD_FASTER), measured(store, HEAD_SLOWER)

    with store.read() as session:
        found = regression(session, caller("ann"), faster, ALLOWED)

    assert (found.outcome, found.op, found.base, found.head) == (
        "passed",
        "permute",
        "torch",
        "warpcall",
    )
    assert found.device == "NVIDIA H200"
    assert len(found.rows) == 2
    assert outcome_of(store, slower) == "undecided"  # one job alone
    assert outcome_of(store, slower, allowed=1.0) == "passed"


def test_jobs_that_repeat_a_check_count_and_lead_to_it(store: Store) -> None:
    first = measured(store, HEAD_SLOWER)
    repeat = measured(store, HEAD_SLOWER, tags=[tag_of_repeats(first)])

    with store.read() as session:
        from_first, from_repeat = (
            regression(session, caller("ann"), job, ALLOWED) for job in (first, repeat)
        )

    assert from_first == from_repeat
    assert (from_first.outcome, from_first.jobs) == ("slower", [first, repeat])


@pytest.mark.parametrize(("user", "private"), [("eve", False), ("ann", True)])
def test_jobs_of_others_and_those_that_may_not_be_read_do_not_count(
    store: Store, user: str, private: bool
) -> None:
    first = measured(store, HEAD_SLOWER)
    measured(store, HEAD_SLOWER, user, tags=[tag_of_repeats(first)], private=private)

    assert outcome_of(store, first, "bob") == "undecided"


def test_a_private_check_does_not_exist_for_others(store: Store) -> None:
    job = measured(store, HEAD_FASTER, private=True)

    with pytest.raises(NotFound):
        outcome_of(store, job, "eve")


def test_a_job_with_one_implementation_is_no_check(store: Store) -> None:
    lab.submit(store, "ann", "permute", lab.permute_cases((64,)), ["warpcall"])
    job = lab.measure(store, HEAD_FASTER)

    with pytest.raises(InvalidInput, match="must have two implementations"):
        outcome_of(store, job)
