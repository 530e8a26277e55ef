"""Which proxy the environment names for a server, and what errors say of it."""

from __future__ import annotations

import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit
from warpcall import ConnectionFailed, InvalidInput, Problem
from warpcall._config import configure_one, proxy_for

PROXY = "http://proxy.lab:3128"
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def chosen(url: str) -> tuple[str, str] | None:
    """The proxy for a server and the variable that names it."""
    config = configure_one(url, None)
    proxy = proxy_for(config)
    assert config.direct is (proxy is None and config.scheme == "http")
    return None if proxy is None else (proxy.url, proxy.variable)


@pytest.mark.parametrize(
    ("variable", "url", "names_it"),
    [
        ("HTTP_PROXY", "http://gpu-box:8000", True),
        ("HTTP_PROXY", "https://gpu-box", False),
        ("HTTPS_PROXY", "https://gpu-box", True),
        ("https_proxy", "https://gpu-box", True),
        ("HTTPS_PROXY", "http://gpu-box:8000", False),
        ("ALL_PROXY", "https://gpu-box", True),
        ("ALL_PROXY", "http://gpu-box:8000", True),
        ("all_proxy", "http://10.1.2.3:8000", True),
        ("ALL_PROXY", "http://127.0.0.1:8000", False),
    ],
)
def test_a_proxy_is_for_its_scheme_or_for_all(
    variable: str, url: str, names_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, PROXY)

    assert chosen(url) == ((PROXY, variable) if names_it else None)


def test_the_proxy_of_a_scheme_goes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://other.lab:1")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)

    assert chosen("https://gpu-box") == (PROXY, "HTTPS_PROXY")


@pytest.mark.parametrize(
    ("no_proxy", "url", "bypassed"),
    [
        ("10.0.0.0/8", "http://10.1.2.3:8000", True),
        ("192.168.0.0/16, 10.0.0.0/8", "https://10.1.2.3", True),
        ("10.1.0.0/16", "http://10.2.0.1:8000", False),
        ("10.1.2.3/8", "http://10.9.9.9:8000", True),
        ("fd00::/8", "http://[fd12::1]:8000", True),
        ("[fd12::1]", "http://[fd12::1]:8000", True),
        ("[fd12::1]:8000", "http://[fd12::1]:8000", True),
        ("fe80::/10", "http://[fd12::1]:8000", False),
        ("10.1.2.3", "http://10.1.2.3:8000", True),
        ("10.1.2.3:8000", "http://10.1.2.3:8000", True),
        ("10.1.2.3:9", "http://10.1.2.3:8000", False),
        ("10.0.0.0/8", "http://gpu-box:8000", False),
        ("lab.example", "https://gpu.lab.example", True),
        (".lab.example", "https://gpu.lab.example", True),
        ("gpu.lab.example:443", "https://gpu.lab.example", True),
        ("b.example", "https://gpu.lab.example", False),
        ("not a network/8,,", "http://10.1.2.3:8000", False),
        ("*", "http://10.1.2.3:8000", True),
    ],
)
def test_no_proxy_names_servers_and_networks(
    no_proxy: str, url: str, bypassed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)

    assert chosen(url) == (None if bypassed else (PROXY, "ALL_PROXY"))


@pytest.mark.parametrize(
    "given", ["ftp://proxy.lab", "http://", "http://ann:secret@proxy:many", "//"]
)
def test_a_proxy_that_is_no_address_is_refused_by_its_variable(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", given)

    with pytest.raises(InvalidInput, match="ALL_PROXY must name a proxy such as") as caught:
        proxy_for(configure_one("https://gpu-box", None))

    assert "secret" not in str(caught.value)


def test_a_socks_proxy_says_which_package_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://proxy.lab:1080")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(InvalidInput, match=r"ALL_PROXY names a SOCKS proxy, for which .* socksio"):
        proxy_for(configure_one("https://gpu-box", None))


def through(proxy: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ALL_PROXY", proxy.url.replace("//", "//ann:secret@"))
    return f"the proxy {proxy.url} (from ALL_PROXY)"


def test_a_proxy_that_refuses_a_connection_is_named(
    direct: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(lambda visit: visit.answer(407)) as proxy:
        shown = through(proxy, monkeypatch)
        with pytest.raises(ConnectionFailed) as caught:
            direct.ask_url("https://gpu-box", lambda gpu: gpu.health(), retries=0)

    assert str(caught.value) == f"{shown} does not connect to gpu-box: 407 Said"


def test_an_answer_that_may_be_of_the_proxy_says_so(
    direct: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(lambda visit: visit.answer(403, b"<html>no</html>")) as proxy:
        shown = through(proxy, monkeypatch)
        with pytest.raises(Problem) as caught:
            direct.ask_url("http://gpu-box:8000", lambda gpu: gpu.tensors(), retries=0)

    assert str(caught.value) == f"the server, or {shown}, answered 403"


def test_a_connection_through_a_proxy_that_breaks_names_it(
    direct: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(visit: Visit) -> None:
        raise ConnectionAbortedError

    with ScriptedServer(leaves) as proxy:
        shown = through(proxy, monkeypatch)
        with pytest.raises(ConnectionFailed, match="the connection to gpu-box through") as caught:
            direct.ask_url("http://gpu-box:8000", lambda gpu: gpu.health(), retries=0)

    assert f"through {shown} broke" in str(caught.value)


def test_a_proxy_that_does_not_answer_in_time_is_named(
    direct: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(visit: Visit) -> None:
        visit.sock.recv(1)  # until the client leaves

    with ScriptedServer(waits) as proxy:
        shown = through(proxy, monkeypatch)
        with pytest.raises(Exception, match="did not answer in time") as caught:
            direct.ask_url("http://gpu-box:8000", lambda gpu: gpu.health(), timeout_s=0.5)

    assert str(caught.value).startswith(f"gpu-box through {shown} did not answer in time")
