"""Share links from the pages: made by a form, shown once, listed and revoked."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest

from tests.app.forms.conftest import FormsApp
from tests.forms.fields import MARKUP, errors_of
from tests.service.job_requests import submit

SECRET = re.compile(r'<p class="secret"><a data-address href="([^"]*)">([^<]*)</a>')
REVOKE = re.compile(r'action="[^"]*shares/([0-9a-f]{16})/revoke"')


@pytest.fixture
def owner(lab: FormsApp) -> httpx.Client:
    """The browser of a user whose links are made here only."""
    lab.browsers["other"].cookies.clear()
    return lab.browsers["other"]


def new_job(http: httpx.Client) -> str:
    """The id of a new job of a browser's user."""
    return str(submit(http, fresh=True)["id"])


def make(http: httpx.Client, job: str, **fields: str) -> httpx.Response:
    return http.post(f"/jobs/{job}/shares", data={"expires": "7 days", **fields})


def shown(http: httpx.Client, job: str) -> str:
    """The path of the new link that the page of a job's links shows."""
    page = http.get(f"/jobs/{job}/shares")
    found = SECRET.search(page.text)
    assert found is not None, errors_of(page)
    assert found[2] == f"{str(http.base_url).rstrip('/')}{found[1].removeprefix('../..')}"
    return found[1].removeprefix("../..")


def guest_reads(lab: FormsApp, path: str) -> int:
    with lab.browser() as guest:
        return guest.get(path).status_code


def test_a_link_is_shown_once_and_lives_until_it_is_revoked(
    lab: FormsApp, owner: httpx.Client
) -> None:
    job = new_job(owner)

    answer = make(owner, job)
    path = shown(owner, job)
    again = owner.get(f"/jobs/{job}/shares")
    before = guest_reads(lab, path)
    listed = REVOKE.findall(owner.get(f"/jobs/{job}").text)
    revoked = owner.post(f"/shares/{listed[0]}/revoke", data={"job": job})
    after = guest_reads(lab, path)

    assert (answer.status_code, answer.headers["location"]) == (303, "shares")
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert (SECRET.search(again.text), len(REVOKE.findall(again.text))) == (None, 1)
    assert path.rpartition("/")[2] not in again.text
    assert (before, after) == (200, 404)
    assert (revoked.status_code, revoked.headers["location"]) == (303, f"../../jobs/{job}/shares")
    assert REVOKE.findall(owner.get(f"/jobs/{job}").text) == []


def test_a_link_is_shown_where_the_id_of_its_job_is_cut_short(
    lab: FormsApp, owner: httpx.Client
) -> None:
    job = new_job(owner)

    answer = make(owner, job[:8])
    path = shown(owner, job[:8])

    assert answer.status_code == 303
    assert guest_reads(lab, path) == 200


@pytest.mark.parametrize(("lifetime", "expires"), [("never", False), ("1 day", True)])
def test_a_link_expires_if_it_is_to(
    lab: FormsApp, owner: httpx.Client, lifetime: str, expires: bool
) -> None:
    job = new_job(owner)

    make(owner, job, expires=lifetime)

    links = owner.get(f"/v1/jobs/{job}/shares").json()["shares"]
    assert [one["expires_at"] is not None for one in links] == [expires]


def test_a_comparison_is_shared_from_its_page(lab: FormsApp, owner: httpx.Client) -> None:
    first, second = (lab.complete(submit(owner, fresh=True))["id"] for _ in range(2))
    page = owner.get("/compare", params={"a": first, "b": second})

    make(owner, first, other=second)
    path = shown(owner, first)

    assert f'name="other" value="{second}"' in page.text
    with lab.browser() as guest:
        compared = guest.get(path)
    assert f"{second}" in compared.text
    for a, b, links in ((first, second, 1), (second, first, 1), (first, first, 0)):
        text = owner.get("/compare", params={"a": a, "b": b}).text
        assert len(REVOKE.findall(text)) == links


def test_all_links_of_a_user_are_on_one_page(lab: FormsApp, owner: httpx.Client) -> None:
    jobs = [new_job(owner) for _ in range(2)]
    for job in jobs:
        make(owner, job)

    mine = owner.get("/shares").text
    ids = REVOKE.findall(mine)[:2]  # the latest first
    owner.post(f"/shares/{ids[0]}/revoke", data={"job": MARKUP})

    assert all(f"jobs/{job}" in mine for job in jobs)
    assert REVOKE.findall(owner.get("/shares").text) == REVOKE.findall(mine)[1:]
    assert ids[1] not in lab.admin.get("/shares").text
    assert ids[1] in lab.admin.get("/shares?user=all").text
    assert ids[1] not in lab.bench.get("/shares?user=all").text
    assert "/shares" in owner.get("/jobs").text


def test_only_who_may_share_a_job_sees_and_uses_the_form(
    lab: FormsApp, owner: httpx.Client
) -> None:
    job = new_job(owner)
    make(owner, job)
    [link] = REVOKE.findall(owner.get(f"/jobs/{job}").text)

    for name in ("call", "bench", "upload", "scratch"):
        http = lab.browsers[name]
        page = http.get(f"/jobs/{job}")
        answers = [
            make(http, job),
            http.get(f"/jobs/{job}/shares"),
            http.post(f"/shares/{link}/revoke", data={"job": job}),
        ]

        assert page.status_code == 200
        assert "Make a share link" not in page.text
        assert "#share" not in page.text
        assert link not in page.text
        assert all(answer.status_code in (403, 404) for answer in answers)
    assert make(lab.admin, job).status_code == 303
    assert len(owner.get(f"/v1/jobs/{job}/shares").json()["shares"]) == 2


def test_what_is_wrong_is_said_and_makes_no_link(lab: FormsApp, owner: httpx.Client) -> None:
    job = new_job(owner)
    wrong = [
        make(owner, job, expires=MARKUP),
        make(owner, job, other=MARKUP * 4),
        make(owner, job, other="0123456789ab"),
    ]
    owner.post(f"/jobs/{job}/private", data={"private": "yes"})
    private = make(owner, job)
    page = owner.get(f"/jobs/{job}")

    assert [answer.status_code for answer in wrong] == [422, 422, 404]
    assert "the time must be 1 day" in errors_of(wrong[0])[""]
    assert all(MARKUP not in answer.text for answer in wrong)
    assert (private.status_code, "is private" in errors_of(private)[""]) == (422, True)
    assert "Make a share link" not in page.text
    assert "no link can show it" in page.text
    assert owner.get(f"/v1/jobs/{job}/shares").json()["shares"] == []


@pytest.mark.parametrize("planted", ["sh_" + "A" * 43, MARKUP, "x" * 3000])
def test_a_planted_cookie_shows_nothing(lab: FormsApp, owner: httpx.Client, planted: str) -> None:
    job = new_job(owner)

    page = owner.get(f"/jobs/{job}/shares", headers={"cookie": f"warpcall-new-share={planted}"})

    assert page.status_code == 200
    assert SECRET.search(page.text) is None
    assert unescape(planted) not in unescape(page.text)


def test_the_link_to_another_job_is_not_shown_as_new(lab: FormsApp, owner: httpx.Client) -> None:
    job, other = new_job(owner), new_job(owner)
    cookie = make(owner, other).headers["set-cookie"].partition(";")[0]
    owner.cookies.clear()

    page = owner.get(f"/jobs/{job}/shares", headers={"cookie": cookie})

    assert SECRET.search(page.text) is None
