"""The pages below a path prefix, behind a real nginx with the configuration in docs/deploy.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.nginx import certificate_in, free_port, needs_nginx, running_nginx, temporary_paths
from tests.pages import lab
from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF
from warpcall import Client

expect.set_options(timeout=WAIT_MS)
pytestmark = [needs_nginx, pytest.mark.slow]
PREFIX = "/lab/warpcall"
DEPLOY = Path(__file__).parents[2] / "docs/deploy.md"
SETTINGS = {
    "WARPCALL_ROOT_PATH": PREFIX,
    "WARPCALL_TRUSTED_PROXIES": "127.0.0.1",
    "WARPCALL_ARENA_BYTES": "16MiB",
    # The job that waits is of the user whose job another server runs: it is not started here.
    "WARPCALL_USER_RUNNING_JOBS": "1",
    "WARPCALL_JOB_LEASE_S": "86400",
}


@dataclass(frozen=True)
class Published:
    """A server below PREFIX, over plain HTTP and over TLS, on ports of one nginx.

    Attributes:
        waiting: id of a job that stays in the queue.
        urls: by scheme, the server's URL with the prefix.
        direct: the server's own URL.
        names: by scheme, how the cookie is named.
    """

    key: str
    waiting: str
    urls: dict[str, str]
    direct: str
    certificate: Path
    names: ClassVar = {"http": "warpcall", "https": "__Secure-warpcall"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("prefix")
    certificate, certificate_key = certificate_in(folder)
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder / "data")})
    key = database.key("alice", "bench")
    store = database.store()
    for _ in range(2):
        waiting = lab.submit(store, "bob", "permute", lab.permute_cases((64,)), ["warpcall"])
    lab.measure(store, {"warpcall": 0.9}, cases=0)
    store.close()
    ports = {"http": free_port(), "https": free_port()}
    with running_server({**database.settings, **SETTINGS, **BRIEF}) as server:
        location = _documented().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        configuration = f"""
            pid {folder}/nginx.pid;
            events {{}}
            http {{
                access_log off; {temporary_paths(folder)}
                ssl_certificate {certificate};
                ssl_certificate_key {certificate_key};
                server {{ listen 127.0.0.1:{ports["http"]}; {location} }}
                server {{ listen 127.0.0.1:{ports["https"]} ssl; {location} }}
            }}"""
        with running_nginx(folder, configuration, ports["http"]):
            urls = {
                scheme: f"{scheme}://127.0.0.1:{port}{PREFIX}" for scheme, port in ports.items()
            }
            yield Published(key, waiting, urls, server.url, certificate)


def _documented() -> str:
    """The block of nginx's configuration in docs/deploy.md."""
    found = re.findall(r"^```\n(location .*?)^```$", DEPLOY.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    assert f"location {PREFIX}/ {{" in found[0]
    return str(found[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@needs_chromium
def test_a_browser_never_leaves_the_prefix(
    published: Published, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(published.certificate))
    url = published.urls["https"]
    with opened(browser, ignore_https_errors=True) as tab:
        tab.page.goto(f"{url}/new?op=permute")
        tab.page.get_by_label("API key").fill(published.key)
        tab.page.get_by_role("button", name="Log in").click()
        tab.page.get_by_label("Shapes of x").fill("8x4 4x8")
        tab.page.get_by_label("dims", exact=True).fill("1,0")
        tab.page.get_by_label("quick").check()
        tab.page.get_by_label("Measure").check()
        # Without a GPU, nothing is compared with warpcall.
        tab.page.get_by_label("compare with torch", exact=True).check()
        tab.page.get_by_label("time copy").check()
        tab.page.get_by_role("button", name="Submit").click()
        expect(tab.page).to_have_url(re.compile(f"^{re.escape(url)}/jobs/[0-9a-f]+"))
        job = urlsplit(tab.page.url).path.rpartition("/")[2]
        tab.page.evaluate("window.notReloaded = true")
        expect(tab.page.locator(".badge", has_text="succeeded")).to_be_visible()
        expect(tab.page.locator("tr.case")).to_have_count(2)
        live = tab.page.evaluate("window.notReloaded")
        for name in ("Now", "Jobs", "Board", "Kernels", "Guide", "Get started"):
            tab.page.locator("header").get_by_role("link", name=name, exact=True).click()
            expect(tab.page.locator("nav a[aria-current]")).to_have_text(name)
        expect(tab.page.locator(".command").first).to_contain_text(f"pip install {url}/install/")
        tab.page.goto(f"{url}/jobs/{job}/cases/0")
        expect(tab.page.locator("#rounds[data-drawn]")).to_be_attached()
        tab.page.goto(f"{url}/jobs/{job}")
        tab.page.get_by_role("link", name="Share", exact=True).click()  # which opens that part
        tab.page.get_by_role("button", name="Make a share link").click()
        expect(tab.page.locator(".secret a")).to_have_text(
            re.compile(f"^{re.escape(url)}/share/sh_")
        )
        tab.page.locator(".secret a").click()
        expect(tab.page.locator("h1")).to_have_text("permute")
        tab.page.go_back()
        expect(tab.page.locator(".secret")).to_have_count(0)
        tab.page.get_by_role("button", name="Revoke").click()
        expect(tab.page.locator("main")).to_contain_text("There are no links to this job")
        tab.page.locator("header").get_by_role("link", name="API", exact=True).click()
        expect(tab.page.locator(".servers option").first).to_have_text(PREFIX)
        cookies = tab.page.context.cookies(url)
        with Client(url, api_key=published.key) as gpu:
            link = gpu.jobs.get(job).share().url
        with opened(browser, ignore_https_errors=True) as guest:
            guest.page.goto(link)
            expect(guest.page.locator("tr.case")).to_have_count(2)
            assert guest.page.context.cookies(url) == []
        tab.page.get_by_role("button", name="Log out", exact=True).click()
        expect(tab.page.get_by_label("API key")).to_be_visible()
        left = tab.page.context.cookies(url)
        tab.page.goto(f"{url}/jobs")
        expect(tab.page.get_by_label("API key")).to_be_visible()

        assert live
        assert [(one["name"], one["path"], one["secure"]) for one in cookies] == [
            (published.names["https"], PREFIX, True)
        ]
        assert left == []
        assert tab.faults + guest.faults == []
        asked = [*tab.asked, *guest.asked]
        assert {one.startswith(f"{url}/") for one in asked} == {True}
        assert sum("/events" in one for one in tab.asked) == 1


@needs_chromium
def test_a_browser_logs_in_and_out_below_the_prefix_over_plain_http(
    published: Published, browser: Browser
) -> None:
    url = published.urls["http"]
    with opened(browser) as tab:
        tab.page.goto(f"{url}/new?op=permute")
        tab.page.get_by_label("API key").fill(published.key)
        tab.page.get_by_role("button", name="Log in").click()
        expect(tab.page.get_by_label("Shapes of x")).to_be_visible()
        cookies = tab.page.context.cookies(url)
        tab.page.locator("header").get_by_role("link", name="Get started", exact=True).click()
        expect(tab.page.locator(".command").first).to_contain_text(f"pip install {url}/install/")
        tab.page.get_by_role("button", name="Log out", exact=True).click()
        expect(tab.page.get_by_label("API key")).to_be_visible()

        assert [(one["name"], one["path"], one["secure"]) for one in cookies] == [
            (published.names["http"], PREFIX, False)
        ]
        assert tab.page.context.cookies(url) == []
        assert tab.faults == []
        assert {one.startswith(f"{url}/") for one in tab.asked} == {True}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_programs_use_the_prefix_too(published: Published, scheme: str) -> None:
    url, key = published.urls[scheme], {"authorization": f"Bearer {published.key}"}
    with httpx.Client(verify=False, headers=key, timeout=30) as http:  # of this test
        me = http.get(f"{url}/v1/me")
        described = http.get(f"{url}/openapi.json").json()
        missing = http.get(f"{url}/v1/nothing").json()
        other = http.get(f"{url}/v2/nothing").json()
        moved = http.get(f"{url}/jobs/?user=ann", headers={"accept": "text/html"})
        outside = http.get(url.removesuffix(PREFIX) + "/v1/me")
        own = http.get(f"{published.direct}/v1/me")
        command = http.get(f"{url}/install").text
        with http.stream("GET", f"{url}/v1/jobs/{published.waiting}/events") as stream:
            first = next(stream.iter_lines())

    assert (me.status_code, own.status_code, outside.status_code) == (200, 200, 404)
    assert described["servers"] == [{"url": PREFIX}]
    assert command.startswith(f"pip install {url}/install/")
    assert list(other) == ["error"], "problems below /v2 have the form of that protocol"
    assert missing["detail"] == "there is nothing at '/v1/nothing'"
    assert moved.headers["location"] == f"{url}/jobs?user=ann"
    assert first, "the job does not end, so a proxy that waits for more would send nothing"


def test_a_prefix_may_be_named_like_a_page(tmp_path: Path) -> None:
    settings = {"WARPCALL_DATA_DIR": str(tmp_path), "WARPCALL_ROOT_PATH": "/jobs"}
    settings["WARPCALL_INSECURE"] = "true"

    with running_server(settings) as server, httpx.Client(base_url=server.url) as http:
        pages = [http.get(path, headers={"accept": "text/html"}) for path in ("/jobs", "/", "/new")]
        missing = http.get("/jobs/0123", headers={"accept": "text/html"})

    assert [page.status_code for page in pages] == [200, 200, 200]
    assert "<title>Jobs" in pages[0].text
    assert missing.status_code == 404
    assert 'href="../static' in missing.text
    assert urlsplit(str(missing.url)).path == "/jobs/0123"
