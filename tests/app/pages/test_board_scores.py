"""The scores of a board."""

from __future__ import annotations

import math

import httpx
import pytest

from tests.pages.filled import Jobs
from warpcall.jobs.results import BoardEntry, Standing
from warpcall_bench.summaries.scores import scores_of


def entry(name: str, relative: float, spread: float = 1.02) -> BoardEntry:
    return BoardEntry(
        rank=1,
        implementation=name,
        median_us=1.0,
        relative=relative,
        relative_low=relative / spread,
        relative_high=relative * spread,
        job="",
        user="",
        finished_at="",
    )


def standing(*entries: BoardEntry, unranked: tuple[BoardEntry, ...] = ()) -> Standing:
    return Standing(case="", entries=[*entries], unranked=[*unranked])


def test_each_implementation_is_compared_with_torch_where_both_have_a_rank() -> None:
    found = scores_of(
        [
            standing(entry("ann/a", 1.25), entry("bob/b", 2.45), entry("torch", 2.5)),
            standing(entry("ann/a", 5.0), entry("torch", 4.0), unranked=(entry("bob/b", 0.1),)),
            standing(entry("bob/b", 1.0), entry("ann/a", 2.0)),
        ]
    )

    a, b = found
    assert [one.implementation for one in found] == ["ann/a", "bob/b"]
    assert (a.against, a.compared, a.won, a.cases) == ("torch", 2, 1, 3)
    assert a.ratio == pytest.approx(0.625**0.5)
    assert a.share_of_limit == pytest.approx((0.8 * 0.2 * 0.5) ** (1 / 3))
    width = math.sqrt(2 * 2 * math.log(1.02) ** 2) / 2  # of two cases, each of two results
    assert a.ratio_low == pytest.approx(a.ratio * math.exp(-width))
    assert a.ratio_high == pytest.approx(a.ratio * math.exp(width))
    assert (b.compared, b.won) == (1, 0), "a lead within the noise wins nothing"


def test_without_torch_the_baseline_is_the_copy() -> None:
    (found,) = scores_of([standing(entry("ann/a", 2.0)), standing(entry("ann/a", 0.5))])

    assert (found.against, found.compared, found.won) == ("copy", 2, 1)
    assert found.ratio == pytest.approx(1.0)
    assert found.share_of_limit == pytest.approx(1.0)


def test_a_result_without_an_interval_leaves_none() -> None:
    (found,) = scores_of([standing(entry("ann/a", 2.0, spread=1.0))])

    assert found.ratio == pytest.approx(2.0)
    assert (found.ratio_low, found.ratio_high) == (None, None)
    assert found.won == 0


def test_the_board_and_the_job_show_their_scores(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    board = browser_http.get("/v1/board?op=permute").json()
    page = browser_http.get("/board?op=permute").text
    job = browser_http.get(f"/v1/jobs/{pages_lab.done}").json()
    of_job = browser_http.get(f"/jobs/{pages_lab.done}").text

    assert board["scores"]
    for score in board["scores"]:
        assert score["implementation"] in page
        assert score["compared"] <= score["cases"] == len(board["standings"])
    assert "share of cases won" in page
    score = job["outcome"]["score"]
    assert score["ratio_low"] < score["ratio"] == job["outcome"]["typical"] < score["ratio_high"]
    assert "Score of ann/tiles: " in of_job
