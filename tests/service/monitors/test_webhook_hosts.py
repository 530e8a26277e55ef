"""Which URLs a monitor may have: those at hosts that the operator of the server lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.monitors.lab import HOUR_S, JOB, add
from tests.service.requests import problem_of
from warpcall_bench.settings import BenchSettings
from warpcall_service.settings import SettingsError


def test_without_the_setting_no_url_is_accepted(sqlite: Database) -> None:
    with running_server({**sqlite.settings, **BRIEF}) as server:
        detail = refused(server, "https://example.org/hook")

    assert detail == (
        "notify: must be empty: the operator of this server lists no hosts to call with "
        "WARPCALL_WEBHOOK_HOSTS, got 'https://example.org/hook'"
    )


LISTED = (
    *(
        "https://hooks.example.org/",
        "https://hooks.example.org:443/a?b=c",
        "https://hooks.example.org",
    ),
    *("HTTPS://HOOKS.Example.ORG/", "https://10.0.0.7:8443/", "http://10.0.0.7:8080/hook"),
    *("http://plain.example/", "http://plain.example:80/", "https://[2001:db8::7]:8443/"),
)
NOT_LISTED = (
    *(
        "http://hooks.example.org/",
        "http://hooks.example.org:443/",
        "https://hooks.example.org:80/",
    ),
    *(
        "https://example.org/",
        "https://x.hooks.example.org/",
        "https://hooks.example.org.evil.example/",
    ),
    *(
        "https://hooks.example.org./",
        "https://10.0.0.7/",
        "http://10.0.0.7:8443/",
        "https://10.0.0.7:8080/",
    ),
    *(
        "https://plain.example/",
        "https://[2001:db8::7]/",
        "https://127.0.0.1/",
        "http://localhost/",
    ),
    *("https://169.254.169.254/latest", "https://10.0.0.007:8443/", "https://0x0a000007:8443/"),
)
NO_URLS = (
    *("https://ann:secret@hooks.example.org/", "https://hooks.example.org@evil.example/"),
    *("https://hooks.example.org\\@evil.example/", "https://evil.example\\.hooks.example.org/"),
    *(
        "https://hooks.example.org/#a",
        "https://hooks.example.org#@evil.example/",
        "//hooks.example.org/",
    ),
    *(
        "ftp://hooks.example.org/",
        "hooks.example.org",
        "https://",
        "https:///",
        "https:hooks.example.org",
    ),
    *(
        "https://hooks.example.org:99999/",
        "https://hooks.example.org:x/",
        "https://hooks.example.org/\n",
    ),
    *(
        "https://hooks.exa mple.org/",
        "https://hooks.example.org\t/",
        "https://h\u00f6oks.example.org/",
    ),
    *("file:///etc/passwd", "https://[2001:db8::7/", f"https://hooks.example.org/{'x' * 2000}"),
)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that may call some hosts, none of which exists."""
    settings = {
        "WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("listing")),
        "WARPCALL_WEBHOOK_HOSTS": "Hooks.Example.org, 10.0.0.7:8443,http://10.0.0.7:8080,"
        "http://plain.example,[2001:db8::7]:8443",
        "WARPCALL_USER_MAX_MONITORS": "100",
    }
    with running_server({**settings, **BRIEF}) as running:
        yield running


@pytest.mark.parametrize("url", LISTED)
def test_a_url_at_a_listed_host_is_accepted(url: str, listing: Server) -> None:
    with client(listing) as http:
        assert add(http, notify=url)["notify"] == url


@pytest.mark.parametrize("url", NOT_LISTED)
def test_a_url_at_another_host_is_refused_at_once(url: str, listing: Server) -> None:
    detail = refused(listing, url)

    assert detail == (
        "notify: must be at http://10.0.0.7:8080, http://plain.example, https://10.0.0.7:8443, "
        "https://[2001:db8::7]:8443, https://hooks.example.org, which the operator of this server "
        f"lists with WARPCALL_WEBHOOK_HOSTS, got '{url}'"
    )


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_refused_at_once(url: str, listing: Server) -> None:
    assert "notify" in refused(listing, url)


def refused(server: Server, url: str) -> str:
    with client(server) as http:
        answer = http.post("/v1/monitors", json={"job": JOB, "every_s": HOUR_S, "notify": url})
    return problem_of(answer, 422, "invalid-input", "notify")


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            "hooks.example.org,",
            "https://hooks.example.org",
            "hooks.example.org/",
            "*.example.org",
        ),
        *(
            "ann@hooks.example.org",
            "hooks.example.org:0",
            "hooks.example.org:65536",
            "a.example,,b.example",
        ),
        *("ftp://hooks.example.org", "h\u00f6oks.example.org", "a b", "2001:db8::7", "10.0.0.0/8"),
    ],
)
def test_an_entry_that_is_no_host_stops_the_start(given: str) -> None:
    with pytest.raises(SettingsError, match="must be hosts such as") as caught:
        BenchSettings.load(webhook_hosts=given)

    assert "WARPCALL_WEBHOOK_HOSTS" in str(caught.value)
