"""What pages of other sites can make a browser send: nothing that could change something."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.app.sites import AppSite
from tests.oip.requests import refused
from tests.service.auth.browsers import keep, log_in
from tests.service.requests import PERMUTE, problem_of, well

HOST = "localhost:8000"
SITES = (None, "same-origin", "none", "same-site", "cross-site", "", "Same-Origin")
ORIGINS = (
    None,
    f"http://{HOST}",
    "null",
    "",
    "https://elsewhere.example",
    "http://localhost",
    "http://localhost:8001",
    f"http://{HOST}.elsewhere.example",
    f"file://{HOST}",
    HOST,
)
METHODS = ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")


def allowed(site: str | None, origin: str | None) -> bool:
    """What the browser says itself comes first; without that, the origin must be this host."""
    if site is not None:
        return site in ("same-origin", "none")
    return origin in (None, f"http://{HOST}")


def headers_of(site: str | None, origin: str | None, host: str = HOST) -> dict[str, str]:
    given = {"host": host, "sec-fetch-site": site, "origin": origin}
    return {name: value for name, value in given.items() if value is not None}


def test_each_combination_of_headers_is_decided_alike_with_and_without_keys(
    site: AppSite, app: App
) -> None:
    _, key = site.user()
    with site.logged_in(key) as browser, app.client() as local:
        for http, (fetched, origin) in itertools.product(
            (browser, local), itertools.product(SITES, ORIGINS)
        ):
            answer = http.delete("/v1/tensors/x", headers=headers_of(fetched, origin))

            if allowed(fetched, origin):
                assert answer.status_code == 404, (fetched, origin)
            else:
                field = "origin" if fetched is None else "sec-fetch-site"
                said = problem_of(answer, 403, "forbidden", field)
                assert "a page of another site must not send this request" in said
                assert "Authorization: Bearer" in said


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://gpu.example", "gpu.example", 404),
        ("https://gpu.example", "gpu.example:443", 404),
        ("https://gpu.example:443", "gpu.example", 404),
        ("http://gpu.example", "gpu.example:80", 404),
        ("HTTP://GPU.example", "gpu.EXAMPLE", 404),
        ("http://[::1]:8000", "[::1]:8000", 404),
        ("http://gpu.example", "gpu.example:443", 403),
        ("http://gpu.example:443", "gpu.example", 403),
        ("http://[::1]:8000", "[::1]:8001", 403),
        ("http://", "gpu.example", 403),
    ],
)
def test_an_origin_has_the_host_and_the_port_of_the_server(
    advertised: App, origin: str, host: str, status: int
) -> None:
    with advertised.client() as http:
        answer = http.delete("/v1/tensors/x", headers=headers_of(None, origin, host))

    assert answer.status_code == status
    assert answer.json()["field"] == ("origin" if status == 403 else "id")


@pytest.fixture(scope="module")
def advertised() -> Iterator[App]:
    """An application without keys that callers know by a name, too."""
    with running_app(advertised_url="http://gpu.example") as running:
        yield running


@pytest.mark.parametrize("method", METHODS)
def test_no_method_that_could_change_something_is_left_out(http: httpx.Client, method: str) -> None:
    answer = http.request(method, PERMUTE, headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 403


def test_reading_is_not_restricted_since_no_answer_can_be_read_by_the_other_page(
    http: httpx.Client,
) -> None:
    http.headers.update({"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example"})

    answers = [http.request(method, "/v1/kernels") for method in ("GET", "HEAD", "OPTIONS")]

    assert [answer.status_code for answer in answers] == [200, 405, 405]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_every_route_that_may_change_something_refuses_other_sites_before_it_looks(
    site: AppSite,
) -> None:
    _, key = site.user("admin")
    with site.logged_in(key) as http:
        paths = http.get("/openapi.json").json()["paths"]
        http.headers["sec-fetch-site"] = "cross-site"
        answers = {
            f"{method} {path}": http.request(method, path)
            for path, methods in paths.items()
            for method in methods
            if method not in ("get", "head", "options")
        }

    assert len(answers) > 15
    assert "post /login" in answers
    assert "post /logout" in answers
    for name, answer in answers.items():
        if " /v2" in name:  # in that protocol's form
            assert "a page of another site" in refused(answer, 403), name
        else:
            problem_of(answer, 403, "forbidden", "sec-fetch-site")


def test_another_site_cannot_log_a_browser_in_with_its_own_key(site: AppSite) -> None:
    _, key = site.user()

    with site.browser({"sec-fetch-site": "cross-site"}) as http:
        answer = log_in(http, key)

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("Bearer {key}", 200), ("bearer {key}", 200), ("Bearer wrong", 401), ("Basic {key}", 403)],
)
def test_a_key_in_a_header_is_a_programs_and_is_not_affected(
    site: AppSite, authorization: str, status: int
) -> None:
    _, key = site.user()
    headers = headers_of("cross-site", "https://elsewhere.example")

    with site.browser(headers, authorization=authorization.format(key=key)) as http:
        assert well(http).status_code == status


def test_a_browser_without_the_first_header_is_known_by_its_origin(site: AppSite) -> None:
    _, key = site.user()
    with site.browser() as http:
        keep(http, log_in(http, key))
        own = str(http.base_url).rstrip("/")
        statuses = [
            http.post("/logout", headers={"origin": origin}).status_code
            for origin in ("null", "https://elsewhere.example", own, own)
        ]

    assert statuses == [403, 403, 303, 303]


def test_no_answer_invites_other_origins(site: AppSite) -> None:
    asks = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}

    with site.browser(asks, authorization=f"Bearer {site.user('admin')[1]}") as http:
        answers = [
            http.options(PERMUTE),
            http.get("/v1/kernels"),
            http.get("/"),
            http.get("/healthz"),
            http.post(PERMUTE, json={}),
        ]

    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["x-content-type-options"] == "nosniff"
