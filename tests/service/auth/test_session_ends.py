"""Sessions of browsers end for good: by a log-out, with their key, in time, on every server."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import running_server
from tests.service.auth.browsers import (
    BEHIND_A_PROXY,
    HTML,
    Site,
    log_in,
    until,
    who,
)
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.requests import PERMUTE, problem_of
from warpcall.errors import Unauthorized
from warpcall_service.auth import sessions, users
from warpcall_service.auth.tables import BrowserSession
from warpcall_service.identity import Caller

pytestmark = pytest.mark.slow

ENDED = "the session has ended: log in again"


def test_a_stolen_cookie_is_worth_nothing_after_the_log_out(site: Site) -> None:
    name, key = site.user()
    with site.logged_in(key) as http, site.logged_in(key) as elsewhere:
        stolen = http.headers["cookie"]

        answer = http.post("/logout")

        assert answer.status_code == 303
        assert answer.headers["location"] == "login"
        assert answer.headers["set-cookie"].startswith("warpcall=; Path=/; Max-Age=0; ")
        with site.browser(cookie=stolen) as thief:
            assert problem_of(thief.get("/v1/me"), 401, "unauthorized", None) == ENDED
        assert who(elsewhere) == name, "the user's other browsers stay logged in"
        assert http.post("/logout").headers["location"] == "login", "a second time, too"


def test_a_log_out_everywhere_ends_the_users_sessions_and_no_others(site: Site) -> None:
    name, key = site.user()
    other, others_key = site.user()
    with (
        site.logged_in(key) as first,
        site.logged_in(site.key(name, "bench")) as second,
        site.logged_in(others_key) as others,
        site.browser(authorization=f"Bearer {key}") as program,
    ):
        answer = first.post("/logout-everywhere")

        assert answer.status_code == 303
        assert [who(http) for http in (first, second, others)] == ["", "", other]
        assert who(program) == name, "keys stay valid"


def test_a_program_can_log_its_user_out_everywhere(site: Site) -> None:
    _, key = site.user()
    with site.logged_in(key) as http, site.browser(authorization=f"Bearer {key}") as program:
        assert program.post("/logout").status_code == 303
        before = who(http)

        assert program.post("/logout-everywhere").status_code == 303

        assert (bool(before), who(http)) == (True, "")


@pytest.mark.parametrize("how", ["revoke the key", "disable the user", "revoke", "revoke all"])
def test_what_an_administrator_ends_is_ended(site: Site, how: str) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        assert who(http) == name
        (found,) = site.database.listed("sessions", "list", "--user", name)

        words = {
            "revoke the key": ("keys", "revoke", key[:11]),
            "disable the user": ("users", "disable", name),
            "revoke": ("sessions", "revoke", found["session"]),
            "revoke all": ("sessions", "revoke", "--user", name),
        }[how]
        site.database.command(*words)

        until(lambda: who(http) == "")
        assert site.database.listed("sessions", "list", "--user", name) == []
        if how == "disable the user":
            site.database.command("users", "enable", name)
            with site.browser(authorization=f"Bearer {key}") as program:
                until(lambda: who(program) == name)
            assert who(http) == "", "an enabled user must log in again"


def test_a_session_ends_with_its_key_at_the_latest(site: Site) -> None:
    name, key = site.user(lifetime_s=10)

    with site.logged_in(key) as http:
        (row,) = site.database.listed("sessions", "list", "--user", name)
        keys = site.database.listed("keys", "list", "--user", name)
        until(lambda: who(http) == "")

    assert row["expires"] == keys[0]["expires"]


def test_a_session_whose_key_was_revoked_is_refused_even_if_its_row_is_left(site: Site) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        site.database.sql(
            f"UPDATE api_keys SET revoked_at = 1 WHERE user_name = '{name}'",
            "UPDATE changes SET number = number + 1",
        )

        until(lambda: who(http) == "")

        said = problem_of(http.get("/v1/me"), 401, "unauthorized", None)
    assert said == f"the API key {key[:11]} was revoked"
    assert len(site.database.listed("sessions", "list", "--user", name)) == 1


def test_an_expired_session_opens_nothing(site: Site) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        soon = int(time.time()) + 3
        site.database.sql(
            f"UPDATE sessions SET expires_at = {soon} WHERE user_name = '{name}'",
            "UPDATE changes SET number = number + 1",
        )

        until(lambda: who(http) == "")

        assert problem_of(http.get("/v1/me"), 401, "unauthorized", None) == ENDED
    with site.logged_in(key):
        store = site.database.store()
        with store.read() as session:
            query = sa.select(sa.func.count()).where(BrowserSession.user_name == name)
            assert session.scalars(query).one() == 1, "a log-in deletes what has expired"
        store.close()


@pytest.mark.parametrize("how", ["log out", "expire"])
def test_a_request_in_progress_ends_with_its_session(site: Site, how: str) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        head = (
            f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nCookie: {http.headers['cookie']}\r\n"
            "Content-Type: application/vnd.safetensors\r\nContent-Length: 1000\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", site.server.port), timeout=30) as sock:
            sock.sendall(head.encode() + b"x")
            until(lambda: in_flight(http) == 2)
            if how == "log out":
                assert http.post("/logout").status_code == 303
            else:
                site.database.sql(
                    f"UPDATE sessions SET expires_at = 1 WHERE user_name = '{name}'",
                    "UPDATE changes SET number = number + 1",
                )
            answer = b""
            while b"request_id" not in answer:
                data = sock.recv(1 << 16)
                assert data, answer
                answer += data

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert ENDED.encode() in answer


def in_flight(http: httpx.Client) -> int:
    """Requests of the user that the server has not answered, including this one."""
    number: int = http.get("/v1/me").json()["in_flight"]["requests"]
    return number


def test_a_user_has_a_bounded_number_of_sessions(site: Site) -> None:
    name, key = site.user()
    caller = Caller(name, "call", key[3:11])
    store = site.database.store()
    with site.logged_in(key) as http:
        assert who(http) == name
        with store.write() as session:
            session.execute(sa.text("UPDATE sessions SET used_at = used_at - 9"))
            for _ in range(sessions.MAX_SESSIONS):
                sessions.create(session, caller, 60)
        store.close()

        until(lambda: who(http) == "")

    assert len(site.database.listed("sessions", "list", "--user", name)) == sessions.MAX_SESSIONS


def test_the_last_use_is_stored_now_and_then(site: Site) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        (before,) = site.database.listed("sessions", "list", "--user", name)
        site.database.sql(
            f"UPDATE sessions SET used_at = used_at - 3600 WHERE user_name = '{name}'",
            "UPDATE changes SET number = number + 1",
        )

        def used() -> str:
            assert who(http) == name
            (row,) = site.database.listed("sessions", "list", "--user", name)
            return str(row["used"])

        until(lambda: used() >= before["used"])


def test_another_server_of_the_database_follows(site: Site) -> None:
    name, key = site.user()
    with (
        running_server({**site.database.settings, **BEHIND_A_PROXY}) as server,
        site.logged_in(key) as http,
        Site(server, site.database).browser(cookie=http.headers["cookie"]) as there,
    ):
        until(lambda: who(there) == name)

        assert there.post("/logout").status_code == 303

        assert who(there) == ""
        until(lambda: who(http) == "")


def test_without_a_database_sessions_go_on_and_nobody_logs_in(
    postgres: Postgres, tmp_path: Path
) -> None:
    name, database = "alice", new_postgresql(postgres, tmp_path)
    key = database.key(name)
    with running_server({**database.settings, **BEHIND_A_PROXY}) as server:
        site = Site(server, database)
        with site.logged_in(key) as http, site.browser() as other:
            with postgres.away(database):
                until(lambda: "cannot be read" in http.get("/readyz").text)

                opened = who(http)
                refused = log_in(other, key)
                other.headers["accept"] = HTML
                page = log_in(other, key)
                kept = http.post("/logout")
                still = who(http)
            until(lambda: http.post("/logout").status_code in (303, 401))
            ended = who(http)

    assert (opened, still, ended) == (name, name, "")
    problem_of(refused, 503, "unavailable", None)
    problem_of(kept, 503, "unavailable", None)
    assert page.headers["location"].startswith("login?failed=unavailable&")


@pytest.mark.parametrize("how", ["revoke", "disable"])
def test_a_key_that_ends_during_the_log_in_opens_no_session(database: Database, how: str) -> None:
    key = database.key("alice")
    store = database.store()
    with store.write() as session:
        if how == "revoke":
            users.revoke_key(session, key)
        else:
            users.disable_user(session, "alice")

    with store.write() as session, pytest.raises(Unauthorized, match="is no longer valid"):
        sessions.create(session, Caller("alice", "call", key[3:11]), 60)

    with store.read() as session:
        assert sessions.listed(session) == []
    store.close()
