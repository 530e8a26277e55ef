"""What a job says of the implementation that it is about, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.client.job_answers import JOB
from warpcall._jobs.parse import parse
from warpcall.jobs import JobInfo, JobOutcome
from warpcall.jobs.outcomes import (
    add_case,
    chip_of,
    conclusive,
    main_outcome,
    outcome_of,
    outcomes_of,
    pairs_of,
    sentence,
    why_undecided,
)
from warpcall.jobs.results import Measurement

MINE = "ann/my_swiglu@3f2a91c0"


def row(
    ratio: float | None = None,
    verdict: str | None = None,
    *,
    status: str = "ok",
    us: float | None = 2.0,
    tags: tuple[str, ...] = (),
    has_interval: bool = True,
) -> Measurement:
    bound = ratio if has_interval else None
    given = {"status": status, "median_us": us, "tags": [*tags], "ratio": ratio, "verdict": verdict}
    values: dict[str, Any] = dict.fromkeys(Measurement.__dataclass_fields__)
    return Measurement(**{**values, **given, "ratio_low": bound, "ratio_high": bound})


def rows_of(cases: Sequence[Mapping[str, Measurement]]) -> list[Measurement]:
    return [
        replace(one, position=position, implementation=name)
        for position, of_case in enumerate(cases)
        for name, one in of_case.items()
    ]


def outcome(counts: dict[str, int], typical: float | None = 0.96, against: str = "torch") -> Any:
    return JobOutcome(implementation=MINE, against=against, counts=counts, typical=typical)


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["warpcall"], [("warpcall", "")]),
        (["warpcall", "copy"], [("warpcall", "copy")]),
        (["warpcall", "copy", "torch"], [("warpcall", "torch")]),
        ([MINE, "warpcall", "torch"], [(MINE, "warpcall"), (MINE, "torch")]),
        (["torch", "warpcall", MINE, "bob/x"], [(MINE, "torch"), ("bob/x", "torch")]),
        (["bob/x", MINE, "torch"], [(MINE, "bob/x")]),
        (["copy", "warpcall"], [("warpcall", "copy")]),
    ],
)
def test_a_job_is_about_its_upload(names: list[str], pairs: list[tuple[str, str]]) -> None:
    assert pairs_of(names) == pairs


@pytest.mark.parametrize("is_first", [True, False])
def test_verdicts_are_from_the_side_of_the_upload(is_first: bool) -> None:
    names = [MINE, "torch", "copy"] if is_first else ["torch", MINE, "copy"]
    given = [(0.5, "faster"), (0.98, "inconclusive"), (2.0, "slower"), (1.0, "same")]
    turned = {"faster": "slower", "slower": "faster"}
    cases = [
        {names[0]: row(), names[1]: row(1 / ratio, turned.get(verdict, verdict))}
        if is_first
        else {names[0]: row(), names[1]: row(ratio, verdict)}
        for ratio, verdict in given
    ]

    (found,) = outcomes_of(names, rows_of(cases))

    assert found.counts == {"faster": 1, "undecided": 1, "slower": 1, "same": 1}
    assert found.typical == pytest.approx(0.98**0.25)
    assert sentence(found) == (
        f"{MINE}: faster than torch in 1 of 4 cases, slower than torch in 1, as fast as torch in 1, "
        "undecided in 1; it typically takes 0.99x the time"
    )


@pytest.mark.parametrize(
    ("own", "other", "kind"),
    [
        (row(status="timeout"), row(), "timeout"),
        (row(us=None), row(us=None), "right"),
        (row(1.0, "same", tags=("interpreted",)), row(), "not timed"),
        (row(1.0, "same", tags=("plain torch",)), row(), "not timed"),
        (row(1.0, "same", tags=("suspect",)), row(), "no verdict"),
        (row(1.0, "same"), row(tags=("suspect",)), "no verdict"),
        (row(), row(), "no verdict"),
        (row(), row(status="oom"), "no other"),
        (row(), row(tags=("plain torch",)), "no other"),
        (row(1.0, "inconclusive", has_interval=False), row(), "no interval"),
        (row(1.0, "undecided"), row(), "undecided"),
    ],
)
def test_a_case_counts_once(own: Measurement, other: Measurement, kind: str) -> None:
    (found,) = outcomes_of(["torch", MINE], rows_of([{"torch": other, MINE: own}]))

    assert found.counts == {kind: 1}


def test_nothing_is_called_faster_than_the_copy() -> None:
    cases = [{"copy": row(1.25, "slower"), "warpcall": row()}] * 2

    (found,) = outcomes_of(["warpcall", "copy"], rows_of(cases))

    assert sentence(found) == (
        "warpcall: timed in 2 of 2 cases; it typically reaches 125% of the limit"
    )


def test_the_outcome_of_lists_is_one_with_a_verdict() -> None:
    shipped = row(tags=("plain torch",))
    cases = [{MINE: row(), "warpcall": shipped, "torch": row(1.1, "slower")}]

    found = outcomes_of([MINE, "warpcall", "torch"], rows_of(cases))

    main = main_outcome(found)
    assert main is not None
    assert sentence(main) == f"{MINE}: faster than torch; it takes 0.91x the time"
    assert conclusive(found) == [main]
    assert main_outcome([]) is None


@pytest.mark.parametrize(
    ("counts", "typical", "says", "level"),
    [
        ({"faster": 1, "undecided": 3}, 0.92,
         "my_swiglu 0.92x of torch, faster in 1 of 4, undecided 3", "good"),
        ({"slower": 1}, 12.3, "my_swiglu 12.3x of torch, slower", "good"),
        ({"wrong_result": 1}, None, "my_swiglu: wrong result", "bad"),
        ({"faster": 2, "wrong_result": 1}, 0.5, "my_swiglu: wrong result in 1 of 3", "bad"),
        ({"faster": 1, "timeout": 1, "oom": 1}, 0.5, "my_swiglu: 2 of 3 without a time", "partial"),
        ({"faster": 1, "no other": 2}, 0.5, "torch: 2 of 3 without a time", "partial"),
        ({"not timed": 4}, None, "my_swiglu: right in 4 of 4, not timed: no GPU", "none"),
        ({"right": 4, "unchecked": 2}, None, "my_swiglu: right in 4 of 6, not checked 2", "none"),
        ({"right": 4}, None, "my_swiglu: right in 4 of 4", "good"),
        ({"no verdict": 1}, None, "my_swiglu: no verdict", "none"),
    ],
)  # fmt: skip
def test_lists_say_the_outcome_in_a_few_words(
    counts: dict[str, int], typical: float | None, says: str, level: str
) -> None:
    given = outcome(counts, typical).to_dict()

    job = parse(JobInfo, {**JOB, "state": "succeeded", "outcome": given}, "a job")
    partial = parse(JobInfo, {**JOB, "state": "partial", "outcome": given}, "a job")
    failed = parse(JobInfo, {**JOB, "state": "failed", "outcome": given}, "a job")

    assert chip_of(job) == (says, level)
    assert chip_of(partial) == (says, "bad" if level == "bad" else "partial")
    assert chip_of(failed) == (says, "bad")


@pytest.mark.parametrize("state", ["queued", "running", "cancelled", "timed_out", "interrupted"])
def test_the_state_of_a_job_that_did_not_complete_says_more(state: str) -> None:
    given = outcome({"faster": 1}).to_dict()

    assert chip_of(parse(JobInfo, {**JOB, "state": state, "outcome": given}, "a job")) is None
    assert chip_of(parse(JobInfo, {**JOB, "state": "succeeded"}, "a job")) is None


def test_undecided_says_why_and_what_helps() -> None:
    assert why_undecided(1.196, 1.26, 0.234, "quick") == (
        "the interval 1.196 to 1.260 lies within this machine's noise, ± 23 %; "
        "--precision standard measures longer"
    )
    assert why_undecided(1.005, 1.016, 0.01, "publish") == (
        "the interval 1.005 to 1.016 crosses the margin of ± 1.0 %"
    )


def scored(ratio: float, verdict: str, share: float | None = None) -> Measurement:
    measured = row(ratio, verdict)
    return replace(measured, ratio_low=ratio / 1.1, ratio_high=ratio * 1.2, share_of_limit=share)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_score_is_from_the_side_of_the_upload_and_covers_the_cases_with_a_ratio(
    is_first: bool,
) -> None:
    names = [MINE, "torch"] if is_first else ["torch", MINE]
    won, lost = (
        (scored(2.0, "slower"), scored(0.8, "faster"))
        if is_first
        else (scored(0.5, "faster"), scored(1.25, "slower"))
    )
    base = row()
    cases = [
        *({names[0]: base, names[1]: one} for one in (won, lost)),
        {"torch": base, MINE: row(status="timeout")},
        {"torch": row(status="oom"), MINE: base},
    ]

    (found,) = outcomes_of(names, rows_of(cases))

    score = found.score
    assert score is not None
    assert (score.compared, score.won, score.cases, score.share_won) == (2, 1, 4, 0.25)
    assert score.ratio == found.typical == pytest.approx(0.625**0.5)
    narrow, wide = (1.1 ** (1 / 2**0.5), 1.2 ** (1 / 2**0.5))
    below, above = (wide, narrow) if is_first else (narrow, wide)
    assert score.ratio_low == pytest.approx(score.ratio / below)
    assert score.ratio_high == pytest.approx(score.ratio * above)


def test_shares_of_the_limit_of_rows_that_are_no_basis_for_a_verdict_do_not_count() -> None:
    good, suspect = scored(0.5, "faster", 0.25), replace(row(tags=("suspect",)), share_of_limit=1.1)
    cases = [{"torch": row(), MINE: one} for one in (good, scored(0.5, "faster", 1.0), suspect)]

    (found,) = outcomes_of(["torch", MINE], rows_of(cases))

    assert found.score is not None
    assert found.score.share_of_limit == pytest.approx(0.5)
    assert (found.score.compared, found.score.cases) == (2, 3)


def test_what_an_older_server_has_counted_has_a_score_without_an_interval() -> None:
    older: Any = {"implementation": MINE, "against": "torch", "counts": {"faster": 2}}
    older |= {"log_sum": 2 * math.log(0.5), "ratios": 2}

    before = outcome_of(older.copy()).score
    add_case([older], "torch", rows_of([{"torch": row(), MINE: scored(0.5, "faster", 0.6)}]))
    after = outcome_of(older).score

    for score, cases in ((before, 2), (after, 3)):
        assert score is not None
        assert (score.compared, score.won, score.cases) == (cases, cases, cases)
        assert score.ratio == pytest.approx(0.5)
        assert score.ratio_low is None
