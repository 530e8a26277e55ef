"""The form that adds a monitor: from a job or one case of it, with what is refused and where."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx
import pytest

from tests.app.forms.conftest import FormsApp
from tests.forms.fields import errors_of, filled, new_word
from tests.service.job_requests import CASE, submit

CASES = [{**CASE, "shape": [8, columns]} for columns in (5, 7)]
URL = "https://example.org/hook"


@pytest.fixture(scope="module")
def job(lab: FormsApp) -> dict[str, Any]:
    """A job of two cases that has ended."""
    asked: dict[str, Any] = {"fresh": True, "cases": CASES, "note": "why", "tags": [new_word()]}
    return lab.complete(submit(lab.bench, implementations=["warpcall", "copy"], **asked))


def form(lab: FormsApp, **query: str) -> httpx.Response:
    page = lab.bench.get("/monitors/new", params=query)
    assert page.status_code == 200, page.text
    return page


def added(lab: FormsApp, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 303, errors_of(answer)
    path = answer.headers["location"]
    assert re.fullmatch(r"\.\./monitors/[0-9a-f]{12}", path)
    found = lab.bench.get(f"/v1/monitors/{path[-12:]}")
    assert found.status_code == 200
    monitor: dict[str, Any] = found.json()
    return monitor


def test_a_job_is_repeated_as_it_was_asked_for(lab: FormsApp, job: dict[str, Any]) -> None:
    page = form(lab, like=job["id"])
    found = added(lab, lab.bench.post("/monitors/new", data=filled(page, every="1 day", least="5")))

    assert (found["user"], found["every_s"], found["least"]) == ("bench", 86_400, 0.05)
    assert found["notify"] is None
    wanted = {k: v for k, v in job["request"].items() if k not in ("fresh", "priority", "profile")}
    assert {k: v for k, v in found["request"].items() if v is not None} == wanted
    assert len(wanted["cases"]) == 2
    assert all(unescape(page.text).count(key) for key in ("permute x=F32[8,5]", "x=F32[8,7]"))


def test_one_case_is_repeated_under_its_own_name(lab: FormsApp, job: dict[str, Any]) -> None:
    case = lab.bench.get(f"/v1/jobs/{job['id']}/cases/1").json()["case"]
    found = added(
        lab, lab.bench.post("/monitors/new", data=filled(form(lab, like=job["id"], case=case)))
    )

    preview = lab.bench.post("/v1/jobs/preview", json=found["request"])
    assert preview.json()["first_cases"] == [case]
    assert found["every_s"] == 21_600


def test_the_pages_of_a_job_its_cases_and_their_history_lead_to_the_form(
    lab: FormsApp, job: dict[str, Any]
) -> None:
    case = lab.bench.get(f"/v1/jobs/{job['id']}/cases/1").json()["case"]
    history = lab.bench.get(
        "/history", params={"op": "permute", "implementation": "warpcall", "case": case}
    )
    pages = [lab.bench.get(path) for path in (f"/jobs/{job['id']}", f"/jobs/{job['id']}/cases/1")]
    links = [
        re.findall(r'href="((?:\.\./)*(?:\./)?monitors/new\?[^"]+)"', page.text)
        for page in (*pages, history, lab.bench.get("/monitors/new"))
    ]

    for page, found in zip((*pages, history), links[:3], strict=True):
        (link,) = found
        assert lab.bench.get(page.url.join(unescape(link))).status_code == 200
    assert any(job["id"] in link for link in links[3])
    assert 'href="./monitors/new"' in lab.bench.get("/monitors").text


def test_a_form_that_is_sent_twice_adds_one_monitor_and_shows_one_secret(
    lab: FormsApp, job: dict[str, Any]
) -> None:
    fields = filled(form(lab, like=job["id"]), notify=URL)
    first, second = (lab.bench.post("/monitors/new", data=fields) for _ in range(2))
    other = lab.bench.post("/monitors/new", data={**fields, "every": "7 days"})
    secrets = [
        re.findall(r'<pre class="secret">([0-9a-f]{64})</pre>', page.text)
        for page in (first, second, other)
    ]

    assert [page.status_code for page in (first, second, other)] == [200] * 3
    assert secrets[0] == secrets[1] != secrets[2]
    ids = [re.findall(r"monitors/([0-9a-f]{12})", page.text)[0] for page in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]
    shown = lab.bench.get(f"/monitors/{ids[0]}").text
    assert URL in shown
    assert secrets[0][0] not in shown


def test_the_token_of_another_user_adds_another_monitor(lab: FormsApp, job: dict[str, Any]) -> None:
    fields = filled(form(lab, like=job["id"]))
    mine = lab.bench.post("/monitors/new", data=fields).headers["location"]
    theirs = lab.browsers["other"].post("/monitors/new", data=fields).headers["location"]

    assert mine != theirs


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"every": "1 minute"}, "every"),
        ({"least": "much"}, "least"),
        ({"least": "0.1"}, "least"),
        ({"least": "nan"}, "least"),
        ({"notify": "http://10.0.0.1/"}, "notify"),
        ({"notify": "https://elsewhere.example/"}, "notify"),
        ({"notify": "https://example.org/" + "x" * 2000}, "notify"),
        ({"notify": "https://example.org/\0"}, "notify"),
    ],
)
def test_a_wrong_field_is_named_and_keeps_its_text(
    lab: FormsApp, job: dict[str, Any], change: dict[str, str], field: str
) -> None:
    before = len(lab.bench.get("/v1/monitors").json()["monitors"])
    answer = lab.bench.post("/monitors/new", data=filled(form(lab, like=job["id"]), **change))

    assert answer.status_code == 422
    assert [*errors_of(answer)] == [field, ""] or [*errors_of(answer)] == ["", field]
    if field != "every":
        assert change[field].rstrip("\0") in unescape(answer.text)
    assert len(lab.bench.get("/v1/monitors").json()["monitors"]) == before


def test_what_cannot_be_read_cannot_be_repeated(lab: FormsApp, job: dict[str, Any]) -> None:
    secret = submit(lab.bench, fresh=True, private=True, note="marmalade")
    for query in ({"like": secret["id"]}, {"like": "0123456789ab"}):
        shown = lab.browsers["other"].get("/monitors/new", params=query)
        sent = lab.browsers["other"].post("/monitors/new", data={**query, "every": "1 day"})
        assert (shown.status_code, sent.status_code) == (404, 404)
        assert "marmalade" not in shown.text + sent.text
    none = lab.bench.get("/monitors/new", params={"like": job["id"], "case": "<b>nothing</b>"})
    assert none.status_code == 404
    assert "<b>nothing" not in none.text
    found = added(lab, lab.bench.post("/monitors/new", data=filled(form(lab, like=secret["id"]))))
    assert found["private"] is True
