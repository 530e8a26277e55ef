"""Whose shared memory is whose."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

import httpx
import pytest

from tests.oip.lending import REGIONS, Make, both, listed, path_of, register
from tests.oip.requests import INFER, refused
from tests.servers import Server, running_server
from tests.service.databases import Database

NOBODY = 65534


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
        assert [region["name"] for region in listed(local)] == ["a"], "the same account's"
        assert local.post(INFER, json=both("a")).status_code == 200
        assert register(local, "b", segment(64), 64).status_code == 200


def test_it_can_be_switched_off(segment: Make) -> None:
    with (
        running_server({"WARPCALL_USER_MAX_SHARED_BYTES": "0"}) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert "system_shared_memory" not in http.get("/v2").json()["extensions"]
        assert "takes no tensors" in refused(register(http, "a", segment(64), 64), 403)
        assert "takes no tensors" in refused(http.post(INFER, json=both("a")), 403)


def test_users_do_not_see_each_others_regions(sqlite: Database, segment: Make) -> None:
    keys = {name: sqlite.key(name) for name in ("alice", "bob")}
    key = segment(64)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(sqlite.settings))
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


@contextlib.contextmanager
def account(uid: int) -> Iterator[None]:
    """Sockets and files made meanwhile are this account's."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
def test_a_program_may_lend_only_what_its_account_could_open(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    roots, shared = segment(64), segment(64)
    path_of(shared).chmod(0o666)
    mine = f"warpcall-{secrets.token_hex(6)}"
    with account(NOBODY):
        path_of(mine).touch(0o600)
        os.truncate(path_of(mine), 64)
        nobody = httpx.Client(base_url=server.url)
        assert nobody.get("/v2/health/live").status_code == 200  # connected
    try:
        assert "belongs to another account" in refused(register(nobody, "a", roots, 64), 403)
        assert register(nobody, "mine", mine, 64).status_code == 200
        assert register(nobody, "shared", shared, 64).status_code == 200
        assert nobody.post(INFER, json=both("mine")).status_code == 200

        assert register(http, "a", roots, 64).status_code == 200
        assert [region["name"] for region in listed(http)] == ["a"], "each account has its own"
        refused(nobody.post(INFER, json=both("a")), 404)
        refused(http.post(INFER, json=both("mine")), 404)
    finally:
        nobody.close()
        path_of(mine).unlink()
