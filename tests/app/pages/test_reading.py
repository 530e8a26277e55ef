"""What the pages answer: a case, two jobs, a history, a board, a kernel."""

from __future__ import annotations

import itertools
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.pages import lab
from tests.pages.filled import CASE, Jobs
from tests.service.job_rows import caller
from warpcall.jobs.results import BoardEntry, Readings
from warpcall_bench.drawing.plots import log_axis
from warpcall_bench.drawing.readings import reading_rows
from warpcall_bench.drawing.sources import (
    MOST_LINES,
    definition,
    difference,
    files_of_op,
    highlighted,
)
from warpcall_bench.drawing.steps import levels
from warpcall_bench.pages import history
from warpcall_bench.pages.case import TICK_ROOM, _spaced, case_page
from warpcall_bench.pages.view import View
from warpcall_bench.runs.messages import version_of
from warpcall_bench.summaries.board import ranked
from warpcall_service.identity import GUEST
from warpcall_service.store.database import Store


def text_of(page: httpx.Response) -> str:
    """The text of a page on one line, without its elements."""
    assert page.status_code == 200, page.text[:500]
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


def test_a_case_has_its_numbers_its_noise_and_its_samples(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    path = f"/jobs/{pages_lab.done}/cases/1"
    details = browser_http.get(f"/v1{path}").json()

    page = browser_http.get(path)

    text = text_of(page)
    assert re.search(r"ann/tiles: as fast as warpcall; it takes 1\.\d\dx the time\.", text)
    assert re.search(r"torch .{,80} 4\.\d+ .{,40}slower", text)
    assert "40 because of thermal slowdown" in text
    assert page.text.count("<figure>") == 3  # a distribution for each rival
    first = details["measurements"][0]
    assert f"{first['median_us']:.4g}" in text
    assert len(details["samples_us"]["torch"]) == details["rounds"] == len(details["input_sets"])
    assert "clock, MHz 1980 1980 1980 1965" in text
    assert "power, W 5" in text
    assert "warpcall against itself is 0.999 to 1.002" in text
    assert details["readings"]["rounds"][:2] == [4, 9]
    assert {*map(len, details["readings"].values())} == {24}
    assert details["input_sets"][:9] == [0, 1, 0, 1, 1, 0, 1, 0, 0]


def test_a_case_without_readings_says_nothing_about_the_clock(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    path = f"/jobs/{pages_lab.failed}/cases/0"
    details = browser_http.get(f"/v1{path}").json()

    page = browser_http.get(path)

    assert details["readings"] is None
    assert "clock, MHz" not in text_of(page)


def test_readings_stand_for_the_rounds_since_the_one_before() -> None:
    nothing: list[float | None] = [None] * 3
    readings = Readings(
        rounds=[9, 29, 30], sm_clock_mhz=[10, 30, 31], power_w=nothing, temperature_c=[1, None, 3]
    )

    clock, temperature = reading_rows(readings, 40, 4)

    assert (clock.label, clock.parts) == ("clock, MHz", [10, 30, 30, 31])
    assert temperature.parts == [1, None, None, 3]
    assert reading_rows(readings, 3, 4) == []
    assert reading_rows(None, 40, 4) == []


def test_the_ticks_of_times_leave_room_for_their_texts() -> None:
    axis = _spaced(log_axis([330.0, 1300.0], " µs"))

    places = [tick.at for tick in axis.ticks]

    assert len(places) >= 2
    assert all(after - before >= TICK_ROOM for before, after in itertools.pairwise(places))
    assert places[-1] <= 100 - TICK_ROOM / 2


def test_a_case_that_is_not_measured_is_not_there(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    unmeasured = browser_http.get(f"/jobs/{pages_lab.running}/cases/2")
    beyond = browser_http.get(f"/jobs/{pages_lab.done}/cases/8")
    below = browser_http.get(f"/jobs/{pages_lab.done}/cases/-1")

    assert [page.status_code for page in (unmeasured, beyond, below)] == [404, 404, 422]
    assert "has 8 cases and has measured 2" in unmeasured.text


def test_the_progress_of_a_job_has_the_numbers_of_its_page(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    running = browser_http.get(f"/v1/jobs/{pages_lab.running}/progress").json()
    done = browser_http.get(f"/v1/jobs/{pages_lab.done}/progress").json()
    queued = browser_http.get(f"/v1/jobs/{pages_lab.queued}/progress").json()
    page = browser_http.get(f"/jobs/{pages_lab.running}")

    assert running["state"] == "running"
    assert {phase["name"] for phase in running["phases"]} <= {
        "queue",
        "start",
        "check",
        "warm",
        "rounds",
    }
    assert "rounds" in {phase["name"] for phase in running["phases"]}
    assert all(phase["seconds"] > 0 for phase in running["phases"])
    now = running["now"]
    assert (now["phase"], now["position"], now["rounds"]) == ("rounds", 2, 60)
    assert f"{now['medians_us']['torch']:.4g}" in text_of(page)
    assert f"± {100 * now['half_width']:.2f} %" in text_of(page)
    assert (done["state"], done["now"]) == ("succeeded", None)
    assert queued["now"] is None
    assert browser_http.get("/v1/jobs/0123456789ab/progress").status_code == 404


def test_a_comparison_names_the_changes_and_puts_evidence_first(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get("/compare", params={"a": pages_lab.earlier, "b": pages_lab.later})

    text = text_of(page)
    assert "driver 575.57.08 580.95.05" in text
    assert "source of warpcall aaaaaaaaaaaa bbbbbbbbbbbb" in text
    assert re.search(r"The second job is faster in 8, the same in 24 of 32 rows", text)
    verdicts = re.findall(r'<span class="(faster|same|slower|undecided)">', page.text)
    assert verdicts == ["faster"] * 8 + ["same"] * 24


def test_lists_tell_jobs_apart_by_their_cases(pages_lab: Jobs, browser_http: httpx.Client) -> None:
    title = "permute x=BF16[100,100] dims=1,0 + 47 more"
    waiting = "permute x=BF16[1024,1024] dims=1,0 + 7 more"

    now, jobs, compare, monitors = (
        text_of(browser_http.get(path)) for path in ("/", "/jobs", "/compare", "/monitors?user=all")
    )
    page = browser_http.get(f"/jobs/{pages_lab.many}").text

    assert [title in text for text in (now, jobs, compare)] == [True] * 3
    assert waiting in now.partition("Queue")[2].partition("Latest jobs")[0]
    assert re.search(r"[0-9a-f]{12} case 0 fails: .{,60} alice 6\.0 h .* warpcall: timed", monitors)
    assert f"<title>{title}, job {pages_lab.many}" in page


def test_a_comparison_can_be_chosen_from_a_list(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get("/compare", params={"a": pages_lab.later})

    assert f"?a={pages_lab.later}&amp;b={pages_lab.earlier}" in page.text
    assert browser_http.get("/compare?a=0123456789ab&b=0123456789ab").status_code == 404
    assert browser_http.get("/compare?a=0123456789ab").status_code == 404


def test_the_earlier_measurements_of_a_history_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LATEST", 2)
    store = Store(None, tmp_path)
    store.migrate()
    for seed in range(3):
        lab.submit(store, "ann", "permute", lab.permute_cases((4096,)), ["warpcall", "copy"])
        lab.measure(store, {"warpcall": 0.9, "copy": 1.0}, rounds=40, seed=seed)
    with store.read() as session:
        view = View("./", "/history", caller("ann"))
        page = history.history_page(session, view, "permute", "warpcall", CASE)
    store.close()

    before, _, folded = page.partition("<details>")
    assert "<summary>1 earlier measurement</summary>" in folded
    assert [part.count('<td class="fit"><time') for part in (before, folded)] == [2, 1]
    assert before.count("<circle") == 3  # all are drawn


def test_a_history_says_when_the_level_changed_and_why(browser_http: httpx.Client) -> None:
    query = {"op": "permute", "implementation": "warpcall", "case": CASE}

    page = browser_http.get("/history", params=query)

    text = text_of(page)
    assert re.search(
        r"it takes 6\.\d % less than before. That job was the first with another", text
    )
    assert "driver, source" in text
    assert page.text.count('<circle class="k0"') == 6
    (joined,) = re.findall(r'class="path joined k0" points="([^"]*)"', page.text)
    assert len(joined.split()) == 6
    assert 'class="level"' in page.text


def test_the_runs_of_a_monitor_are_joined(pages_lab: Jobs, browser_http: httpx.Client) -> None:
    page = browser_http.get(f"/monitors/{pages_lab.monitor}").text

    (joined,) = re.findall(r'class="path joined k0" points="([^"]*)"', page)
    assert len(joined.split()) == page.count('<circle class="k0"') > 1


def test_a_board_shares_the_lead_within_the_noise(browser_http: httpx.Client) -> None:
    board = browser_http.get("/board", params={"op": "permute"})
    case = browser_http.get("/board", params={"op": "permute", "case": CASE})

    text = text_of(board)
    assert "permute on NVIDIA H200" in text
    assert re.search(r"and shares the lead in 8\.", text)
    ranks = re.findall(r"<b>(\d)</b></td><td>([^<]+?) *<", case.text)
    assert {name for rank, name in ranks if rank == "1"} == {"warpcall", "ann/tiles"}
    assert ("3", "torch") in ranks
    assert "polyline" in case.text
    assert re.search(
        r'>ann/tiles <a class="tag" href="[^"]*" title="[^"]*">verified</a>', case.text
    )
    data = browser_http.get("/v1/board", params={"op": "permute", "case": CASE}).json()
    (standing,) = data["standings"]
    assert [str(entry["rank"]) for entry in standing["entries"]] == [rank for rank, _ in ranks]
    assert (data["device"], data["devices"]) == ("NVIDIA H200", ["NVIDIA H200"])
    assert len(data["steps"]) > len(standing["entries"])
    best = {step["implementation"]: step["relative"] for step in data["steps"]}
    assert best == {entry["implementation"]: entry["relative"] for entry in standing["entries"]}
    assert all(f"{step['relative']:.3f}" in case.text for step in data["steps"])
    assert "/v1/board?op=permute&amp;device=NVIDIA+H200&amp;case=" in case.text


def test_a_board_of_an_op_or_a_case_without_results_is_empty(browser_http: httpx.Client) -> None:
    never = browser_http.get("/v1/board", params={"op": "conv"}).json()
    unknown = browser_http.get("/v1/board", params={"op": "permute", "case": "permute y"}).json()
    elsewhere = browser_http.get("/v1/board", params={"op": "permute", "device": "H%"}).json()

    lists = ("devices", "standings", "scores", "steps")
    empty: dict[str, list[object]] = {name: [] for name in lists}
    assert never == {"op": "conv", "device": None, "ranks_all": False, **empty}
    assert (unknown["standings"], unknown["steps"]) == ([], [])
    assert elsewhere["standings"] == []
    for query in (
        "",
        "?op=",
        "?op=permute&device=",
        "?op=permute&device=a%00",
        "?op=permute&case=",
        "?op=permute&all=maybe",
    ):
        assert browser_http.get(f"/v1/board{query}").status_code == 422, query
    assert browser_http.get("/board?op=permute&device=a%00").status_code == 422


def test_a_kernel_has_its_source_and_those_of_its_family(browser_http: httpx.Client) -> None:
    page = browser_http.get("/kernels/permute")
    helper = browser_http.get("/kernels/permute", params={"file": "_transpose/plan.py"})

    assert '<span class="k">def</span>' in page.text
    assert "ann/tiles" in page.text
    assert helper.status_code == 200
    assert browser_http.get("/kernels/permute?file=../cli.py").status_code == 404
    assert browser_http.get("/kernels/nothing").status_code == 404
    assert next(one.path for one in files_of_op("permute")) == "permute.py"
    assert files_of_op("nothing") == ()


def test_an_upload_has_its_versions_their_difference_and_its_jobs(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    latest = browser_http.get("/implementations/ann/tiles")
    before = re.findall(r"against=([0-9a-f]{12})", latest.text)[0]
    changed = browser_http.get("/implementations/ann/tiles", params={"against": before})

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in latest.text.replace("</span>", "")
    assert "<script>alert" not in latest.text + changed.text
    assert f"/jobs/{pages_lab.done}" in latest.text
    assert f"/jobs/{pages_lab.many}" not in latest.text
    assert changed.text.count('<span class="added">') == 1
    assert changed.text.count('<span class="removed">') == 1
    assert browser_http.get("/implementations/ann/nothing").status_code == 404
    assert browser_http.get("/implementations/ann/tiles?against=zzz").status_code == 422


def test_differences_of_long_sources_are_not_computed() -> None:
    long = "x = 1\n" * (MOST_LINES + 1)

    assert difference(long, "x = 1\n") is None
    assert difference("a\nb\n", "a\nb\n") == []
    assert "<script>" not in highlighted("<script>" * 10_000)


SOURCE = """import triton

OTHER = 1
@triton.autotune(
    configs=[
        1,
    ],
)  # of all
@triton.jit
def _fill(
    out_ptr,
):
    at = 1

    return at
def _fill_more(out_ptr):
    def _inner(x):
        return x
    return _inner
"""


def test_the_definition_of_a_function_has_its_decorators_and_no_other_lines() -> None:
    lines = SOURCE.splitlines(keepends=True)

    assert definition(SOURCE, "_fill") == (4, "".join(lines[3:15]))
    assert definition(SOURCE, "_fill_more") == (16, "".join(lines[15:]))
    assert definition(SOURCE, "_inner") == (17, "".join(lines[16:18]))
    assert definition(SOURCE, "nothing") is None
    assert definition("def f(x): return x", "f") == (1, "def f(x): return x\n")
    assert definition("", "f.*") is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([1.0], [(0, 1)]),
        ([1.0, 1.001, 0.999, 1.0, 1.002, 1.0], [(0, 6)]),
        ([1.0, 1.001, 1.0, 1.1, 1.101, 1.1], [(0, 3), (3, 6)]),
        ([1.0, 1.001, 1.0, 1.1, 1.101, 1.1, 1.0, 1.001, 1.0], [(0, 3), (3, 6), (6, 9)]),
        ([1.0, 1.2, 0.9, 1.1, 0.8, 1.3, 0.9, 1.2], [(0, 8)]),  # noise, as large as steps
    ],
)
def test_steps_of_a_series_are_found_unless_they_are_noise(
    values: list[float], expected: list[tuple[int, int]]
) -> None:
    assert [(level.begin, level.end) for level in levels(values)] == expected


def test_ranks_are_shared_with_the_best_one_of_a_rank_only() -> None:
    def entry(name: str, middle: float) -> BoardEntry:
        return BoardEntry(
            rank=0,
            implementation=name,
            median_us=1.0,
            relative=middle,
            relative_low=middle - 0.004,
            relative_high=middle + 0.004,
            job="",
            user="",
            finished_at="",
        )

    found = ranked([entry("d", 1.2), entry("b", 1.01), entry("c", 1.025), entry("a", 1.0)])

    assert [(one.implementation, one.rank) for one in found] == [
        ("a", 1),
        ("b", 1),  # overlaps a
        ("c", 3),  # overlaps b, which does not lead
        ("d", 4),
    ]


@pytest.mark.parametrize("ends", [(1, 1), (0.97, 1.03), (0.5, 8), (1e-3, 1e6), (8e6, 2e9)])
def test_an_axis_has_a_few_different_marks_in_order(ends: tuple[float, float]) -> None:
    axis = log_axis(ends)

    assert 2 <= len(axis.ticks) <= 8
    assert len({tick.label for tick in axis.ticks}) == len(axis.ticks)
    assert [tick.at for tick in axis.ticks] == sorted(tick.at for tick in axis.ticks)
    assert all(0 <= tick.at <= 100 for tick in axis.ticks)
    assert 0 < axis.at(ends[0]) <= axis.at(ends[1]) < 100


def test_a_case_links_to_compile_reports_of_what_the_reader_may_read(tmp_path: Path) -> None:
    names = ("warpcall", "torch", "ann/tiles", "bob/hidden", "copy")
    source = "def permute(x, dims):\n    return x\n"
    version = version_of("permute", "permute", source)
    verified = version_of("permute", "permute", source, {"language": "python", "launches": None})
    with closing(Store(None, tmp_path)) as store:
        store.migrate()
        lab.upload(store, "ann", "permute", "tiles", source)
        lab.upload(store, "bob", "permute", "hidden", source, private=True)
        lab.submit(store, "bob", "permute", lab.permute_cases((64,)), names, private=False)
        hashes = {"warpcall": "a" * 64, "ann/tiles": verified, "bob/hidden": version}
        job = lab.measure(store, dict.fromkeys(names, 0.9), sources=hashes)
        pages = {}
        with store.read() as session:
            for who in (caller("ann"), caller("bob"), caller("carol", "call")):
                view = View("../../../", f"/jobs/{job}/cases/0", who)
                found = case_page(session, view, job, 0)
                pages[who.name] = re.findall(
                    r'href="\.\./\.\./\.\./(compiled[^"]*)">([^<]*)<', found
                )
            guest = replace(view, caller=replace(GUEST, jobs=frozenset([job])), share="token")
            shared = case_page(session, guest, job, 0)

    library = ("compiled?op=permute", "warpcall")
    uploads = {
        name: (f"compiled?op=permute&amp;implementation={quote(name, '')}%40{one[:12]}", name)
        for name, one in (("ann/tiles", verified), ("bob/hidden", version))
    }
    assert pages["ann"] == [library, uploads["ann/tiles"]]
    assert pages["bob"] == [library, *uploads.values()]
    assert pages["carol"] == []
    assert "compiled" not in shared
