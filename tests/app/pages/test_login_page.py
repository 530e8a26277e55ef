"""How a browser without a session gets to the page to log in, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.harness import running_app
from tests.service.databases import Database

HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def guarded_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client without a key, of an application that has keys."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}).key("alice")
    with running_app(data_dir=folder) as app, app.client() as http:
        yield http


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/", "login?next=%2F"),
        ("/jobs?state=failed", "login?next=%2Fjobs%3Fstate%3Dfailed"),
        ("/jobs/0123456789ab", "../login?next=%2Fjobs%2F0123456789ab"),
        ("//elsewhere.example/", "../../login?next=%2F"),
    ],
)
def test_a_browser_without_a_key_is_sent_to_log_in(
    guarded_http: httpx.Client, path: str, location: str
) -> None:
    answer = guarded_http.send(
        guarded_http.build_request("GET", "/", headers=HTML, extensions={"target": path.encode()})
    )

    assert answer.status_code == 303
    assert answer.headers["location"] == location


def test_a_form_that_is_sent_without_a_session_leads_to_log_in(guarded_http: httpx.Client) -> None:
    form = guarded_http.post("/new", headers=HTML, data={"op": "permute"})
    button = guarded_http.post("/jobs/0123456789ab/cancel", headers=HTML)

    assert (form.status_code, button.status_code) == (303, 303)
    assert form.headers["location"] == "login?next=%2Fnew"
    assert button.headers["location"] == "../../login?next=%2F"


def test_programs_get_a_problem_instead(guarded_http: httpx.Client) -> None:
    answers = [
        guarded_http.get("/jobs"),
        guarded_http.get("/v1/jobs", headers=HTML),
        guarded_http.post("/new"),
        guarded_http.get("/v2/models/permute", headers=HTML),
    ]

    assert [answer.status_code for answer in answers] == [401] * 4


def test_the_page_to_log_in_and_its_files_need_no_key(guarded_http: httpx.Client) -> None:
    page = guarded_http.get("/login", headers=HTML)

    assert page.status_code == 200
    assert 'name="key" type="password"' in page.text
    assert "<nav" not in page.text  # of pages that need a key
    assert guarded_http.get("/static/app.css").status_code == 200
    assert guarded_http.get("/static/").status_code in (401, 404)
