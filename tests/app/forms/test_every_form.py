"""What holds for every form of the server: who may send it, and that no other site can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.forms.conftest import FormsApp
from tests.service.app_routes import app_routes
from tests.service.auth.browsers import keep, log_in
from tests.service.job_requests import submit
from warpcall_service.identity import ROLES, Role

# The role that the form of each path takes; None means that it needs no key. A new form fails the
# first test until it is here.
FORMS: dict[str, Role | None] = {
    "/login": None,
    "/logout": None,
    "/logout-everywhere": "call",
    "/call": "call",
    "/new": "bench",
    "/jobs/{id}/again": "bench",
    "/groups/{id}/cancel": "bench",
    "/jobs/{id}/cancel": "bench",
    "/jobs/{id}/private": "bench",
    "/jobs/{id}/shares": "bench",
    "/shares/{id}/revoke": "bench",
    "/monitors/new": "bench",
    "/monitors/{id}/pause": "bench",
    "/monitors/{id}/remove": "bench",
    "/upload": "upload",
    "/upload/problem": "upload",
    "/admin/users": "admin",
    "/admin/users/{name}/{state}": "admin",
    "/admin/keys": "admin",
    "/admin/keys/{id}/revoke": "admin",
    "/admin/sessions/{id}/end": "admin",
    "/admin/quotas": "admin",
    "/admin/quotas/{kind}/{name}/{quota}/remove": "admin",
}
# The last ones end the session with which the others are sent.
ORDER = sorted(FORMS, key=lambda path: ("/log" in path, path))
FOREIGN = (
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://elsewhere.example"},
    {"origin": "null"},
)
NOWHERE = "0123456789ab"
PAGES = ("/jobs/{id}", "/jobs/{id}/cases/0", "/jobs/{id}/shares", "/new?like={id}")
PAIRS = ("/compare?a={id}", "/compare?a={id}&b={open}", "/compare?a={open}&b={id}")


def url_of(path: str, id: str = NOWHERE) -> str:
    """The URL of a form about a job, or about something that does not exist."""
    return re.sub(r"\{\w+\}", "nothing", path.replace("{id}", id))


@pytest.fixture
def session(lab: FormsApp) -> Iterator[httpx.Client]:
    """A browser in which the administrator has logged in."""
    with lab.browser() as http:
        keep(http, log_in(http, lab.keys["admin"]))
        yield http


def test_every_form_of_the_server_is_in_the_table(tmp_path: Path) -> None:
    found = {
        path
        for method, path in app_routes(tmp_path)
        if method != "GET" and method != "HEAD" and not path.startswith(("/v1/", "/v2/"))
    }

    assert found == FORMS.keys(), "a new form: who may send it?"


def test_no_form_is_taken_from_another_site(session: httpx.Client) -> None:
    for path in ORDER:
        for headers in FOREIGN:
            answer = session.post(url_of(path), data={"token": "t"}, headers=headers)

            assert answer.status_code == 403, (path, headers)
            assert "a page of another site must not send this request" in answer.text.lower()
    assert session.get("/v1/me").json()["name"] == "admin"
    for path in ORDER:
        own = {"sec-fetch-site": "same-origin"}
        answer = session.post(url_of(path), data={"token": "t"}, headers=own)

        assert answer.status_code != 403, path


def test_every_form_takes_its_role(lab: FormsApp) -> None:
    for role in ROLES:
        for path, needed in FORMS.items():
            answer = lab.browsers[role].post(url_of(path), data={"token": "t"})

            if needed is None or ROLES.index(role) >= ROLES.index(needed):
                assert answer.status_code not in (401, 403), (role, path)
            elif needed == "admin":
                assert answer.status_code == 404, (role, path)
                assert "there is nothing at" in answer.text.lower()
            else:
                assert answer.status_code == 403, (role, path)
                assert f"this needs a key with the role {needed}" in answer.text.lower()


def test_without_a_session_a_form_leads_to_the_log_in(lab: FormsApp) -> None:
    with lab.browser() as nobody:
        for path, needed in FORMS.items():
            if needed is not None:
                answer = nobody.post(url_of(path), data={"token": "t"})

                assert answer.status_code == 303, path
                assert re.match(r"(\.\./)*login\?next=", answer.headers["location"]), path


def test_a_private_job_of_another_user_is_on_no_page_and_no_button(lab: FormsApp) -> None:
    owner, other = lab.bench, lab.browsers["other"]
    open_id, secret = (
        lab.complete(submit(owner, fresh=True, note="marmalade", private=private))["id"]
        for private in (False, True)
    )
    of_jobs = [path for path in FORMS if path.startswith("/jobs/{id}")]

    for path in (*PAGES, *PAIRS):
        address = path.replace("{open}", open_id)
        hidden = other.get(address.replace("{id}", secret))
        assert hidden.status_code == 404, path
        assert "marmalade" not in hidden.text
        assert owner.get(address.replace("{id}", secret)).status_code == 200, path
    for path in of_jobs:
        hidden = other.post(url_of(path, secret), data={"token": "t", "private": "no"})
        absent = other.post(url_of(path), data={"token": "t", "private": "no"})
        assert (hidden.status_code, absent.status_code) == (404, 404), path
        assert "there is no job" in hidden.text.lower()
    job = owner.get(f"/v1/jobs/{secret}").json()
    assert (job["private"], job["state"]) == (True, "succeeded")
    assert len(of_jobs) >= 4
