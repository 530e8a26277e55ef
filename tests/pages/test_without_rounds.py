"""What pages say of results that lack intervals, rounds or times."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from tests.pages import h200, lab
from tests.service.job_rows import caller
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import log_axis
from warpcall_bench.jobs import answers, exports
from warpcall_bench.pages.answers import Answer, failures
from warpcall_bench.pages.board import board_page
from warpcall_bench.pages.case import case_page
from warpcall_bench.pages.sizes import Line, Panel
from warpcall_bench.pages.view import View, _environment
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_published_medians_are_shown_without_a_verdict(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    published = h200.load(store, "carol", newest_only=True)
    view = View("./", "/jobs", caller("carol"))
    with store.read() as session:
        medians = text_of(lab.job_page(session, view, published["conv"]))
        sweep = lab.job_page(session, view, published["permute"])
        case = case_page(session, view, published["conv"], 0)
        table = text_of(lab.job_page(session, view, published["table"]))
        with_intervals = text_of(case_page(session, view, published["table"], 0))
        board = text_of(board_page(session, view, ["permute"], "permute", "NVIDIA H200", ""))
    store.close()

    assert "so nothing says how sure a ratio is" in medians
    assert "warpcall: without an interval against torch in 46 of 46 cases; it typically" in medians
    assert "without an interval in 46 of 46 cases" in medians
    assert "nothing is surely outside the margin" in medians
    assert not re.search(r"\bundecided\b|\bfaster\b|took 0 s", medians)
    beaten = [float(ratio) for ratio in re.findall(r'"r less">([\d.]+)<', sweep)]
    level = [float(ratio) for ratio in re.findall(r'"r no">([\d.]+)<', sweep)]
    assert beaten
    assert max(beaten) <= 1 <= min(level)
    assert "No rounds are stored for this case, only medians" in text_of(case)
    assert "samples</th>" not in case  # a column without any value
    assert "GB/s</th>" in case
    assert "warpcall: faster than torch in 4 of 4 cases" in table
    assert "faster than torch.compile in 3 of 4 cases, as fast as torch.compile in 1" in table
    assert "No rounds are stored for this case, so nothing shows" in with_intervals
    assert "1.029 1.028 to 1.031 slower" in with_intervals
    assert re.search(r"warpcall leads alone in \d\d of", board)
    assert "F32[16777216,1] dims=1,0 warpcall" in board  # torch's time there is suspect


def test_failures_are_named_at_the_top_of_a_job(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    cases = lab.permute_cases((64, 128))
    job = lab.submit(store, "ann", "permute", cases, ["warpcall", "torch", "torch.compile"])
    lab.measure(store, {"warpcall": 0.9, "torch": 0.5})
    with store.read() as session:
        page = lab.job_page(session, View("./", "/jobs", caller("ann")), job)
    store.close()

    text = text_of(page.partition("<h2>")[0])
    assert "warpcall: faster than torch in 4 of 4 cases" in text
    assert "torch.compile: raised an exception in 4 of 4 cases." in text


def test_failures_are_named_one_by_one() -> None:
    sure = Answer("torch", 1, Counter(slower=2), [math.log(3)] * 2)
    broken = Answer("bad", 3, Counter(failed=2), [], Counter(wrong_result=1, oom=1))

    assert failures([sure, broken]) == [
        "bad: wrong result in 1 of 2 cases.",
        "bad: out of memory in 1 of 2 cases.",
    ]


@pytest.mark.parametrize(
    ("spread", "says"),
    [
        (0.001, "crosses the margin of ± 1.0 %; --precision publish measures longer"),
        (0.3, "lies within this machine's noise, ± 30 %; --precision publish measures longer"),
    ],
)
def test_an_undecided_ratio_says_why(tmp_path: Path, spread: float, says: str) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    job = lab.submit(store, "ann", "permute", lab.permute_cases((64,)), ["warpcall", "torch"])
    margin = max(0.01, spread)
    random = np.random.default_rng(0)
    made = lab.result(
        "permute", 1 << 20, ["warpcall", "torch"], {"warpcall": 0.9, "torch": 0.89}, 60, random, ""
    )
    ratio = {"ratio": 1.011, "low": 1.005, "high": 1.016, "n": 60, "verdict": "inconclusive"}
    made["implementations"][1]["relative"] = ratio
    change = {"margin": margin, "implementations": made["implementations"]}
    lab.measure(store, {"warpcall": 0.9, "torch": 0.89}, changes={0: change, 1: change})
    with store.read() as session:
        page = text_of(lab.job_page(session, View("./", "/jobs", caller("ann")), job))
        case = answers.find_case(session, caller("ann"), job, 0)
        as_json, as_csv = (
            b"".join(
                step(session) for step in exports.begin(session, caller("ann"), job, form, False)
            )
            for form in ("json", "csv")
        )
    store.close()

    why = f"the interval 1.005 to 1.016 {says}"
    assert f"undecided: {why}" in unescape(page)
    assert [row.why_undecided for row in case.measurements] == ["", why]
    rows = json.loads(as_json)["measurements"]
    assert [row["why_undecided"] for row in rows] == ["", why] * 2
    assert [row["why_undecided"] for row in csv.DictReader(as_csv.decode().splitlines())] == [
        "",
        why,
    ] * 2


@pytest.mark.parametrize(("places", "joined"), [((0, 50, 100), True), ((0, 50, 50.5), False)])
def test_points_are_joined_unless_they_differ_in_more_than_their_size(
    places: tuple[float, ...], joined: bool
) -> None:
    axis = log_axis([1, 10])
    line = Line("warpcall", 0, [(x, 50.0, "") for x in places])

    panel = Panel("", axis, axis, [line, Line("copy", 7, [(0.0, 90.0, ""), (50.0, 80.0, "")])])

    drawn = str(_environment().get_template("macros.html").module.panel(panel))  # type: ignore[attr-defined]  # macros are attributes

    assert panel.joined is joined
    assert ('<polyline class="path k0"' in drawn) is joined
    assert '<polyline class="path k7 limit"' in drawn  # the limit depends on the size alone
    assert drawn.count('<circle class="k0"') == 3
    assert '<circle class="k7"' not in drawn


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (600, "10 min"), (7200, "2.0 h"), (101_000, "28 h"), (400_000, "5 days")],
)
def test_durations_have_no_more_digits_than_one_reads(seconds: float, text: str) -> None:
    assert numbers.span(seconds) == text


def test_widths_of_intervals_have_no_more_digits_than_one_reads() -> None:
    widths = [numbers.plus_minus(100, 100 - half, 100 + half) for half in (0.05, 3.14, 69.6, 959)]

    assert widths == ["± 0.05 %", "± 3.1 %", "± 70 %", "± 959 %"]
