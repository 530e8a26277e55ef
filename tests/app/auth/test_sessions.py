"""Sessions of browsers: how they begin, and what opens them."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.app.sites import AppSite
from tests.service.auth.browsers import (
    HTML,
    cookie_in,
    keep,
    log_in,
    who,
)
from tests.service.requests import problem_of, well
from warpcall_service.auth import session_tokens
from warpcall_service.auth.session_tokens import cookie_name, set_cookie
from warpcall_service.http.route_io import local_path

ENDED = "the session has ended: log in again"


def test_a_key_opens_a_session_with_the_rights_of_the_key(site: AppSite) -> None:
    name, key = site.user("bench")

    with site.browser() as http:
        before = http.get("/v1/me").status_code
        keep(http, log_in(http, key))
        me = http.get("/v1/me").json()
        called = well(http)
        refused = http.get("/metrics")

    assert before == 401
    assert (me["name"], me["role"]) == (name, "bench")
    assert called.status_code == 200
    assert "role admin, got one with bench" in problem_of(refused, 403, "forbidden", None)


def test_the_cookie_is_out_of_reach_of_scripts_other_sites_and_other_hosts(site: AppSite) -> None:
    _, key = site.user()

    with site.browser() as plain, site.browser(https=True) as secure:
        cookies = [log_in(http, key).headers["set-cookie"] for http in (plain, secure)]

    attributes = "; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict"
    token = r"ws_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"
    assert re.fullmatch(f"warpcall={token}{attributes}", cookies[0])
    assert re.fullmatch(f"__Host-warpcall={token}{attributes}; Secure", cookies[1])


def test_below_a_path_prefix_the_cookie_is_for_this_prefix() -> None:
    below = {"scheme": "https", "root_path": "/gpu"}

    assert cookie_name(below) == "__Secure-warpcall", "__Host- needs the path /"
    assert set_cookie(below, "x", 60) == (
        "__Secure-warpcall=x; Path=/gpu; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
    )
    assert set_cookie({**below, "scheme": "http"}, "x", 60).startswith("warpcall=x; Path=/gpu; ")


def test_a_log_in_leads_to_the_page_that_was_wanted(site: AppSite) -> None:
    _, key = site.user()

    with site.browser() as http:
        answers = [log_in(http, key, next=path) for path in ("/v1/jobs?op=isin", "", "//elsewhere")]

    locations = [answer.headers["location"] for answer in answers]
    assert locations == ["./v1/jobs?op=isin", "./", "./"]
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}


@pytest.mark.parametrize(
    "path",
    [
        "https://elsewhere.example",
        "//elsewhere.example",
        "/\\elsewhere.example",
        "\\/elsewhere.example",
        "/\t/elsewhere.example",
        "/a\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "elsewhere",
        " /a",
        "/é",
        "/" + "a" * 2000,
    ],
)
def test_a_path_that_could_lead_elsewhere_leads_to_the_first_page(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/jobs?user=bob&tag=a%20b") == "/jobs?user=bob&tag=a%20b"


def test_a_program_gets_a_problem_for_a_wrong_key_and_a_browser_gets_the_page(
    site: AppSite,
) -> None:
    _, key = site.user()

    with site.browser() as http:
        problem = log_in(http, key + "x")
        http.headers["accept"] = HTML
        page = log_in(http, key + "x", next="/v1/jobs")

    assert "is not one of this server's" in problem_of(problem, 401, "unauthorized", None)
    assert page.status_code == 303
    assert page.headers["location"] == "login?failed=key&next=%2Fv1%2Fjobs"
    assert "set-cookie" not in page.headers


def test_wrong_keys_in_the_form_count_as_wrong_keys_in_a_header_do(site: AppSite) -> None:
    _, key = site.user()

    with site.browser() as http:
        statuses = [
            log_in(http, f"wc_{i:08x}_wrong{i}").status_code
            if i % 2
            else http.get("/v1/me", headers={"authorization": "Bearer wrong"}).status_code
            for i in range(30)
        ]
        right = log_in(http, key)
        http.headers["accept"] = HTML
        page = log_in(http, "wrong")

    allowed = statuses.count(401)
    assert 10 <= allowed <= 14
    assert statuses == [401] * allowed + [429] * (30 - allowed)
    assert right.status_code == 303
    assert page.headers["location"].startswith("login?failed=busy&")


def test_a_user_cannot_log_in_without_end(site: AppSite) -> None:
    _, key = site.user()

    with site.browser() as http:
        answers = [log_in(http, key) for _ in range(14)]

    statuses = [answer.status_code for answer in answers]
    assert 10 <= statuses.count(303) < 14
    assert statuses[-1] == 429
    assert "logs in too often" in problem_of(answers[-1], 429, "busy", None)


def test_a_log_in_never_takes_over_a_token_that_was_there_before(site: AppSite) -> None:
    _, key = site.user()
    planted = session_tokens.new_token()[1]

    with site.browser(cookie=f"warpcall={planted}") as http:
        first = cookie_in(log_in(http, key))[1]
        http.headers["cookie"] = f"warpcall={first}"
        before = who(http)
        second = cookie_in(log_in(http, key))[1]
        after = who(http)

    assert len({planted, first, second}) == 3
    assert before
    assert after == "", "the session that the browser had is ended by the new log-in"
    with site.browser(cookie=f"warpcall={planted}") as http:
        assert who(http) == ""


def test_over_tls_a_cookie_without_the_prefix_opens_nothing(site: AppSite) -> None:
    name, key = site.user()
    with site.browser() as http:
        token = cookie_in(log_in(http, key))[1]

    found = []
    for cookie in ("warpcall", "__Secure-warpcall", "__Host-warpcall"):
        with site.browser(https=True, cookie=f"{cookie}={token}") as http:
            found.append(who(http))

    assert found == ["", "", name], "another host of the domain could have planted the others"


def test_two_cookies_of_the_name_open_nothing(site: AppSite) -> None:
    name, key = site.user()
    with site.browser() as http:
        token = cookie_in(log_in(http, key))[1]
        http.cookies.clear()
        cookies = (f"warpcall={token}; warpcall={token}", f"a=b;warpcall={token}; c=d")
        found = [http.get("/v1/me", headers={"cookie": cookie}).status_code for cookie in cookies]

    assert found == [401, 200]
    assert name


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.upper(),
        lambda token: f'"{token}"',
        lambda token: token[:20],
        lambda token: token.replace("ws_", "wc_"),
        lambda token: session_tokens.new_token()[1][:20] + token[20:],
        lambda token: "x" * 50_000,
    ],
)
def test_what_is_not_quite_a_token_opens_nothing(site: AppSite, change: object) -> None:
    _, key = site.user()
    with site.browser() as http:
        token = cookie_in(log_in(http, key))[1]
        http.cookies.clear()

        answer = http.get("/v1/me", headers={"cookie": f"warpcall={change(token)}"})  # type: ignore[operator]

    assert problem_of(answer, 401, "unauthorized", None) == ENDED
    assert token[20:] not in answer.text


def test_a_key_in_the_header_is_taken_before_the_session(site: AppSite) -> None:
    _, key = site.user()
    other, others_key = site.user()

    with site.logged_in(key) as http:
        wrong = http.get("/v1/me", headers={"authorization": "Bearer wrong"}).status_code
        right = http.get("/v1/me", headers={"authorization": f"Bearer {others_key}"}).json()

    assert wrong == 401
    assert right["name"] == other


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"key=" + b"x" * 9000, "application/x-www-form-urlencoded", 413),
        (b"a=b&" * 600, "application/x-www-form-urlencoded", 422),
        (b"key=\xff", "application/x-www-form-urlencoded", 422),
        (b"key=%ff%00", "application/x-www-form-urlencoded", 422),
        (b"", "application/x-www-form-urlencoded", 401),
        (b'{"key": "x"}', "application/json", 415),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 415),
        (b"", "", 415),
    ],
)
def test_a_form_that_is_none_is_refused(
    site: AppSite, content: bytes, media: str, status: int
) -> None:
    with site.browser() as http:
        answer = http.post("/login", content=content, headers={"content-type": media})

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_server_without_keys_needs_no_session(http: httpx.Client) -> None:
    answers = [
        log_in(http, "anything", next="/v1/jobs"),
        http.post("/logout"),
        http.post("/logout-everywhere"),
    ]
    name = who(http)

    assert [answer.headers["location"] for answer in answers] == ["./v1/jobs", "./", "./"]
    assert not [answer for answer in answers if "set-cookie" in answer.headers]
    assert name == "local"
