"""The page of a job whose implementations race, when it has ended and while it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.harness import running_app
from tests.app.pages.conftest import SETTINGS, Lab
from tests.pages import races
from warpcall_service.store.database import Store


@pytest.fixture
def http(pages_lab: Lab) -> Iterator[httpx.Client]:
    with pages_lab.app.client() as client:
        client.headers["accept"] = "text/html"
        yield client


def page_of(http: httpx.Client, job: str) -> str:
    answer = http.get(f"/jobs/{job}")
    assert answer.status_code == 200, answer.text
    return answer.text


def charts_of(page: str) -> list[str]:
    return re.findall(r'<figure class="race">.*?</figure>', page, re.DOTALL)


def ranking_of(page: str) -> list[tuple[str, str]]:
    """The rank and the implementation of each row."""
    row = r'<td class="rank num">([^<]+)</td>\s*<td class="name"><span class="key k\d">([^<]+)<'
    return re.findall(row, page)


def test_a_race_that_has_ended_shows_who_won_and_how_the_others_left(
    pages_lab: Lab, http: httpx.Client
) -> None:
    results = http.get(
        f"/v1/jobs/{pages_lab.raced}/results", headers={"accept": "application/json"}
    ).json()
    page = page_of(http, pages_lab.raced)

    cases = results["cases"]
    won = [case["race"]["fastest"][0] for case in cases]
    assert [case["race"]["outcome"] for case in cases] == ["winner", "winner"]
    ranking = ranking_of(page)
    assert len(ranking) == 20
    assert (
        f'<p class="lead">{ranking[0][1]} is the fastest, by the geometric mean over 2 cases.'
        in page
    )
    assert ranking[-1] == ("–", "dan/try03")
    assert "wrong result" in page
    for name in won:
        assert f'<td class="wrap">{name}</td>' in page, "each case has its winner"
    assert "left 2 of 2 races" in page
    assert "Never the fastest:" in page
    assert "that measuring all fully would take" in page

    charts = charts_of(page)
    assert len(charts) == 2
    for chart, case in zip(charts, cases, strict=True):
        rows = [
            row["race"]
            for row in results["measurements"]
            if row["position"] == case["position"] and row["race"]["rank"]
        ]
        left = [race for race in rows if race["left_round"] is not None]
        assert chart.count("<circle") == len(rows)
        assert chart.count(' gone"') == len(left) == len(rows) - 1
        assert chart.count(" leads") == 1
        assert all(f"left after {race['left_round']} rounds" in chart for race in left)
    assert "Compared with" not in page, "a ranking takes the place of ratios to the first one"


def test_the_line_of_one_that_left_ends_there(pages_lab: Lab, http: httpx.Client) -> None:
    details = http.get(
        f"/v1/jobs/{pages_lab.raced}/cases/0", headers={"accept": "application/json"}
    ).json()
    chart = charts_of(page_of(http, pages_lab.raced))[0]

    last = max(details["race"]["history"]["rounds"])
    left = re.findall(r'cx="([\d.]+)%"[^>]*><title>(\S+) left after (\d+) rounds', chart)
    places = {name: (float(x), int(rounds)) for x, name, rounds in left}
    assert places
    for row in details["measurements"]:
        race = row["race"]
        if race["left_round"] is not None:
            x, rounds = places[row["implementation"]]
            assert rounds == race["left_round"]
            assert x == pytest.approx(100 * rounds / last, abs=0.1)
    first, *_ = sorted(places.values())
    assert first[0] < 50, "some left early"


def test_a_race_that_runs_shows_who_leads_now(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    names = [f"dan/try{number:02}" for number in range(20)]
    job = races.job(store, names, cases=2, measured=1, seed=4)
    store.close()
    with running_app(**SETTINGS, data_dir=tmp_path) as app, app.client() as client:
        client.headers["accept"] = "text/html"
        page = page_of(client, job)

    charts = charts_of(page)
    assert len(charts) == 2, "the race of now, and the case that has ended"
    assert ", now</figcaption>" in charts[0]
    standing = re.search(
        r'<p class="lead">(\S+) leads: (\d+) race, (?:(\d+) wait, )?(\d+) left', page
    )
    assert standing is not None
    leader, racing, _, left = standing.groups()
    assert charts[0].count(' gone"') == int(left) > 0
    assert f"<title>{leader} races</title>" in charts[0]
    live = re.search(r'<table class="results live">.*?</table>', page, re.DOTALL)
    assert live is not None
    assert live[0].count("<tr><td") == int(racing)
    assert "So far: " in page
    assert "data-events" in page, "the page follows the events of the job"


def test_the_results_of_a_race_have_its_history(pages_lab: Lab, http: httpx.Client) -> None:
    found = http.get(
        f"/v1/jobs/{pages_lab.raced}/cases/0", headers={"accept": "application/json"}
    ).json()

    history = found["race"]["history"]
    assert len(history["rounds"]) == len(history["seconds"]) <= 48
    assert "dan/try03" not in history["ratios"]
    assert len(history["ratios"]) == 19
    left = next(row for row in found["measurements"] if row["race"]["left_round"] is not None)
    assert left["race"]["left_s"] > 0


def test_a_form_of_a_new_job_starts_a_race(pages_lab: Lab, http: httpx.Client) -> None:
    form = {"op": "permute", "shape": "64x64", "dtype": "F32", "params.dims": "1,0"}
    form |= {"baseline": "torch", "precision": "quick", "race": "yes", "action": "preview"}

    alone = http.post("/new", data=form)
    both = http.post("/new", data={**form, "implementation": "warpcall"})
    like = http.get(f"/new?like={pages_lab.raced}")

    assert "race needs 2 implementations" in alone.text
    assert 'id="race-error"' in alone.text
    assert both.status_code == 200
    assert "race-error" not in both.text
    assert 'name="race" value="yes" checked' in both.text
    assert 'name="race" value="yes" checked' in like.text
