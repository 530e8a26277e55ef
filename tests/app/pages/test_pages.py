"""What single pages show, and that they are free of markup of users."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from html import unescape
from pathlib import Path

import httpx
import pytest

from tests.app.harness import running_app
from tests.pages import lab
from tests.pages.filled import MARKUP, Jobs
from tests.service.requests import well
from warpcall_bench.pages import static
from warpcall_service.store.database import Store


def test_markup_of_users_stays_text(pages_lab: Jobs, browser_http: httpx.Client) -> None:
    pages = [
        browser_http.get(f"/jobs/{pages_lab.marked}"),
        browser_http.get("/jobs"),
        browser_http.get("/jobs", params={"user": MARKUP}),
        browser_http.get(f"/jobs/{MARKUP}"),
        browser_http.get("/login", params={"next": MARKUP, "failed": MARKUP}),
        browser_http.get(f"/jobs/{pages_lab.marked}/cases/0"),
        browser_http.get(
            "/history", params={"op": MARKUP, "implementation": MARKUP, "case": MARKUP}
        ),
        browser_http.get("/board", params={"op": MARKUP, "device": MARKUP, "case": MARKUP}),
        browser_http.get("/compare", params={"a": MARKUP}),
        browser_http.get(f"/kernels/{MARKUP}"),
        browser_http.get(f"/jobs/{pages_lab.done}"),
        browser_http.get(f"/monitors/{pages_lab.monitor}"),
        browser_http.get("/monitors", params={"user": MARKUP}),
        browser_http.get("/monitors"),
        browser_http.get("/monitors/new", params={"like": pages_lab.done, "case": MARKUP}),
        browser_http.get("/monitors/new", params={"like": pages_lab.marked}),
        browser_http.get("/compiled", params={"op": MARKUP}),
        browser_http.get(f"/jobs/{pages_lab.done}/cases/1"),
        browser_http.get("/compiled", params={"op": "permute", "shape": MARKUP, "dtype": MARKUP}),
    ]

    assert [MARKUP in page.text for page in pages] == [False] * len(pages)
    assert "&lt;img src=x" in pages[0].text
    # As the note, as the facts of the device, twice as a remark on a case, and as an error.
    assert pages[0].text.count("&lt;img src=x") >= 5
    # As the name of an artefact, as its implementation, and as the reason why there is none.
    assert pages[10].text.count("&lt;img src=x") >= 3
    # In a text, as the name of a kernel, as what cannot be compiled, and as an error.
    assert pages[17].text.count("&lt;img src=x") >= 4
    # As the reason of the last run, and of each of two calls of the URL.
    assert pages[11].text.count("&lt;img src=x") >= 3


def test_a_problem_is_a_page_for_browsers_and_json_for_programs(http: httpx.Client) -> None:
    for_browser = http.get("/jobs/0123456789ab", headers={"accept": "text/html"})
    for_program = http.get("/jobs/0123456789ab", headers={"accept": "application/json"})
    of_the_api = http.get("/v1/jobs/0123456789ab", headers={"accept": "text/html"})

    assert {for_browser.status_code, for_program.status_code, of_the_api.status_code} == {404}
    assert "There is no job" in for_browser.text
    assert "<h1>" in for_browser.text
    assert for_program.json()["title"] == of_the_api.json()["title"] == "Not found"


def test_the_vendored_files_are_those_of_the_list() -> None:
    found = static.static_files()

    hashes = {name: hashlib.sha256(found[name].content).hexdigest() for name in static.VENDORED}
    assert hashes == {name: one.sha256 for name, one in static.VENDORED.items()}
    assert {*found} - {*static.VENDORED} == {
        *("app.css", "app.js", "docs.js", "pictures.js", "rounds.js", "traces.js", "icon.svg")
    }
    assert all(one.license in ("0BSD", "MIT") for one in static.VENDORED.values())


def test_a_file_may_be_kept_only_under_its_version(browser_http: httpx.Client) -> None:
    path = f"/{static.static_path('app.css')}"

    versioned, plain = browser_http.get(path), browser_http.get("/static/app.css")
    again = browser_http.get("/static/app.css", headers={"if-none-match": plain.headers["etag"]})
    unknown = browser_http.get("/static/app.css?v=000000000000")

    assert "immutable" in versioned.headers["cache-control"]
    assert plain.headers["cache-control"] == unknown.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert browser_http.get("/static/nothing.css").status_code == 404
    assert browser_http.get("/static/..%2Fview.py").status_code == 404


def test_a_job_page_gives_the_answer_in_words_and_every_row(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get(f"/jobs/{pages_lab.done}").text

    about = (
        r"ann/tiles: as fast as warpcall in 8 of 8 cases; it typically takes 1\.\d\dx the time\."
    )
    assert re.search(about, page)
    assert page.count('class="lead"') == 1
    assert re.search(r"<b>4\.\d×</b> the time", page)  # of torch, in the table
    assert "slower in 8 of 8 cases" in page
    assert re.search(
        r"<td>\d\d % of the limit is reached, typically</td>", page
    )  # the copy has no bar
    assert page.count('class="key k0">warpcall<') == 8 + 1  # a row of each case, and the legend
    assert "40 rounds of 120 masked: thermal slowdown" in page
    assert "unstable: more than a fifth of the rounds were disturbed" in page


def test_the_table_of_ratios_is_coloured_only_outside_the_margin(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get(f"/jobs/{pages_lab.done}").text

    cells = re.findall(r'<td class="r (\w+)">([\d.]+)</td>', page)
    assert len(cells) == 2 * 8  # of each case the rivals, without the copy
    assert {level for level, ratio in cells if float(ratio) > 2} == {"s3"}  # torch
    assert {level for level, ratio in cells if float(ratio) < 1.01} == {"no"}  # ann/tiles


def test_a_failed_implementation_has_its_error_and_no_time(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get(f"/jobs/{pages_lab.failed}").text

    assert page.count("raised an exception<") == 2
    assert "torch: raised an exception in 2 of 2 cases." in page
    assert "RuntimeError: no kernel for this layout" in page
    assert "without a time in 2 of 2 cases" in page


def test_the_rows_of_many_cases_come_in_pages(pages_lab: Jobs, browser_http: httpx.Client) -> None:
    path = f"/jobs/{pages_lab.many}"

    first, last = browser_http.get(path), browser_http.get(path, params={"from": 40})

    rows = [re.findall(r'<tr class="case">', page.text) for page in (first, last)]
    assert [len(found) for found in rows] == [20, 8]
    assert ("Further cases" in first.text, "Earlier cases" in first.text) == (True, False)
    assert ("Further cases" in last.text, "Earlier cases" in last.text) == (False, True)
    heat = re.findall(r'<td class="r \w+">', last.text)
    assert len(heat) == 48  # of all cases, on every page


def heat(page: str) -> list[tuple[int, float]]:
    """Position of the case and ratio of each row in the table of all ratios."""
    rows = re.findall(r'cases/(\d+)">[^<]*</a></td><td class="r \w+">([\d.]+)<', page)
    return [(int(position), float(ratio)) for position, ratio in rows]


def test_of_very_many_cases_the_worst_ratios_are_shown_first(tmp_path: Path) -> None:
    cases = lab.permute_cases(tuple(range(64, 64 + 50)))
    with closing(Store(None, tmp_path)) as store:
        store.migrate()
        lab.submit(store, "ann", "permute", cases, ["warpcall", "torch", "tiles"])
        speeds = {"warpcall": 0.9, "torch": 0.5, "tiles": 0.9}
        job = lab.measure(store, speeds, changes={41: {"implementations": []}}, rounds=8)
    with running_app(data_dir=tmp_path) as app, app.client() as http:
        least = http.get(f"/jobs/{job}").text
        every = http.get(f"/jobs/{job}", params={"ratios": "all"}).text
        link = http.post(f"/v1/jobs/{job}/shares", json={}).json()["url"]
        shared = http.get(link).text
        refused = http.get(f"/jobs/{job}", params={"ratios": "some"})

    text = " ".join(least.split())
    assert "The 96 of 99 cases in which warpcall does worst, worst first" in text
    assert f'href="../jobs/{job}?ratios=all">All 99 cases</a>' in least
    assert len(heat(every)) == 99
    assert "does worst" not in every
    assert [position for position, _ in heat(every)] == [*range(41), *range(42, 100)]
    ratios = least_ratios(every)
    shown = [ratios[position] for position, _ in heat(least)]
    assert shown == sorted(ratios.values())[:96]
    assert "?ratios=all" in shared
    assert f"/jobs/{job}?ratios" not in shared
    assert refused.status_code == 422


def least_ratios(page: str) -> dict[int, float]:
    """The lowest ratio in the row of each case, by its position."""
    rows = re.findall(r'cases/(\d+)">[^<]*</a></td>((?:<td class="r \w+">[\d.]+</td>)+)', page)
    return {
        int(position): min(map(float, re.findall(r">([\d.]+)<", cells))) for position, cells in rows
    }


def test_a_regression_check_is_a_page_with_its_markdown(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    path = f"/jobs/{pages_lab.done}/regression"
    page = browser_http.get(path).text
    strict, refused = (
        browser_http.get(path, params={"percent": percent}) for percent in ("400", "1e300")
    )
    markdown = browser_http.get(f"/v1{path}", params={"format": "markdown"}).text

    assert "Is torch slower than warpcall?" in page
    assert "It is undecided whether torch is slower than warpcall in" in page
    assert "only one job says that it is slower" in page
    assert "### Warpcall: permute undecided" in page
    assert markdown in unescape(page)
    assert f'href="../../v1/jobs/{pages_lab.done}/regression?allowed=0.01"' in page
    assert (strict.status_code, refused.status_code) == (422, 422)


def test_the_page_of_a_running_job_says_when_it_ends(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    running = browser_http.get(f"/jobs/{pages_lab.running}").text
    queued = browser_http.get(f"/jobs/{pages_lab.queued}").text

    assert re.search(r"2 of 8 cases done. It ends in about \d+", running)
    assert "60 rounds, widest interval ± 0.81 %" in " ".join(running.split())
    assert 'http-equiv="refresh"' in running
    assert "median so far" in running
    assert [f"<b>{us}</b>" in running for us in ("44.44", "200.0")] == [True, True]
    assert re.search(r"Number 1 in the queue. It starts in about \d+", queued)


def test_the_first_page_shows_the_queue_of_all_users(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get("/").text

    assert "1 job running, 1 waiting" in page
    assert f'href="./jobs/{pages_lab.queued}"' in page
    assert "<b>" not in page.partition("<h2>Queue")[0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"user": "alice", "state": "failed"}, {"failed"}),
        ({"state": "failed"}, {"failed"}),
        ({"tag": "nightly"}, {"done"}),
        ({"op": "permute", "user": "carol", "state": "", "tag": ""}, {"many", "marked"}),
        ({"user": "nobody"}, set()),
    ],
)
def test_the_list_of_jobs_can_be_filtered(
    pages_lab: Jobs, browser_http: httpx.Client, query: dict[str, str], expected: set[str]
) -> None:
    page = browser_http.get("/jobs", params=query)

    assert page.status_code == 200
    shown = {*re.findall(r'href="./jobs/([0-9a-f]{12})"', page.text)}
    assert shown == {getattr(pages_lab, name) for name in expected}


def test_a_server_without_jobs_says_what_to_do() -> None:
    with running_app(arena_bytes="16MiB") as app, app.client() as http:
        pages = [http.get(path) for path in ("/", "/jobs")]
        assert well(http).status_code == 200
        after_a_call = http.get("/").text

    assert [page.status_code for page in pages] == [200, 200]
    assert all("warpcall bench" in page.text for page in pages)
    assert "starts at once" in pages[0].text
    assert ("0 calls" in pages[0].text, "1 call," in after_a_call) == (True, True)
    assert '<rect class="calls"' in after_a_call


def test_what_few_readers_of_a_job_need_is_closed(
    pages_lab: Jobs, browser_http: httpx.Client
) -> None:
    page = browser_http.get(f"/jobs/{pages_lab.done}").text

    for heading in ("Where the time went", "Details", "Share"):
        assert re.search(rf'<details[^>]*class="part"><summary><h2>{heading}</h2>', page), heading
    assert "<details open" not in page
