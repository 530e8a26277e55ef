"""Whose shared memory is whose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.app.oip.conftest import SETTINGS
from tests.oip.lending import REGIONS, Make, both, listed, register
from tests.oip.requests import INFER, refused
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


def test_it_is_refused_by_default_with_the_setting_to_change(segment: Make) -> None:
    with running_app() as app, app.client() as http:
        said = "its setting user_max_shared_bytes is 0"
        assert "system_shared_memory" not in http.get("/v2").json()["extensions"]
        assert said in refused(register(http, "a", segment(64), 64), 403)
        assert said in refused(http.post(INFER, json=both("a")), 403)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_callers_on_other_machines_have_none(address: str, app: App, segment: Make) -> None:
    with app.client(address=address) as http:
        answers = [register(http, "a", segment(64), 64), http.get(f"{REGIONS}/status")]

    for answer in answers:
        assert "connect to 127.0.0.1" in refused(answer, 403)


def test_users_do_not_see_each_others_regions(sqlite: Database, segment: Make) -> None:
    keys = {name: sqlite.key(name) for name in ("alice", "bob")}
    key = segment(64)
    with contextlib.ExitStack() as stack:
        folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
        app = stack.enter_context(running_app(**SETTINGS, data_dir=folder))
        alice, bob = (stack.enter_context(app.client(k)) for k in keys.values())
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
