"""Whose shared memory is whose."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.oip.conftest import SETTINGS
from tests.oip.lending import REGIONS, Make, both, listed, register
from tests.oip.requests import INFER, refused
from tests.servers import Server, running_server
from tests.service.databases import Database


@pytest.fixture(autouse=True)
def nothing_is_registered(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post(f"{REGIONS}/unregister").status_code == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "Origin"])
def test_what_comes_for_somebody_else_has_no_shared_memory(
    header: str, http: httpx.Client, segment: Make
) -> None:
    # A page of another site would be refused whatever it asks for.
    own = str(http.base_url).rstrip("/")
    http.headers[header] = own if header == "Origin" else "127.0.0.1"

    answers = [
        register(http, "a", segment(64), 64),
        http.get(f"{REGIONS}/status"),
        http.get(f"{REGIONS}/region/a/status"),
        http.post(f"{REGIONS}/unregister"),
        http.post(f"{REGIONS}/region/a/unregister"),
        http.post(INFER, json=both("a")),
    ]

    for answer in answers:
        assert "on the server's own machine" in refused(answer, 403)
    del http.headers[header]


def test_it_works_over_the_unix_socket_too(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    register(http, "a", segment(64), 64)

    transport = httpx.HTTPTransport(uds=str(server.uds))
    with httpx.Client(transport=transport, base_url="http://x") as local:
        assert [region["name"] for region in listed(local)] == ["a"], "the same user's"
        assert local.post(INFER, json=both("a")).status_code == 200
        assert register(local, "b", segment(64), 64).status_code == 200


def test_it_is_refused_by_default_with_the_setting_to_change(segment: Make) -> None:
    with running_server() as server, httpx.Client(base_url=server.url) as http:
        said = "its setting user_max_shared_bytes is 0"
        assert "system_shared_memory" not in http.get("/v2").json()["extensions"]
        assert said in refused(register(http, "a", segment(64), 64), 403)
        assert said in refused(http.post(INFER, json=both("a")), 403)


def test_callers_on_other_machines_have_none(segment: Make) -> None:
    """A client at an address of this machine that is not the loopback looks like one elsewhere."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but the loopback")
    with (
        running_server(
            {**SETTINGS, "WARPCALL_HOST": address, "WARPCALL_INSECURE": "true"}
        ) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        answers = [register(http, "a", segment(64), 64), http.get(f"{REGIONS}/status")]

    for answer in answers:
        assert "connect to 127.0.0.1" in refused(answer, 403)


def own_address() -> str | None:
    """An address of this machine at which others could reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        found: str = probe.getsockname()[0]
        return found
    return None


def test_users_do_not_see_each_others_regions(sqlite: Database, segment: Make) -> None:
    keys = {name: sqlite.key(name) for name in ("alice", "bob")}
    key = segment(64)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server({**SETTINGS, **sqlite.settings}))
        alice, bob = (
            stack.enter_context(
                httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {k}"})
            )
            for k in keys.values()
        )
        assert register(alice, "a", key, 64).status_code == 200

        assert listed(bob) == []
        refused(bob.get(f"{REGIONS}/region/a/status"), 404)
        refused(bob.post(INFER, json=both("a")), 404)
        bob.post(f"{REGIONS}/region/a/unregister")
        bob.post(f"{REGIONS}/unregister")
        assert [region["name"] for region in listed(alice)] == ["a"]
        assert register(bob, "a", key, 32).status_code == 200, "names are each one's own"
        assert listed(alice)[0]["byte_size"] == 64
        assert alice.post(INFER, json=both("a")).status_code == 200
