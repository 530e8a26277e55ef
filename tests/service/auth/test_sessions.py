"""Sessions of browsers: how they begin, what they open, and that they end for good."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import Server, running_server
from tests.service.auth.browsers import (
    BEHIND_A_PROXY,
    HTML,
    Site,
    cookie_in,
    keep,
    log_in,
    until,
    who,
)
from tests.service.databases import Database
from tests.service.requests import PERMUTE, log_of, problem_of, well
from warpcall_service.auth import session_tokens, sessions
from warpcall_service.auth.session_routes import local_path
from warpcall_service.auth.session_tokens import cookie_name, set_cookie
from warpcall_service.identity import Caller

ENDED = "the session has ended: log in again"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sessions")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    database.key("first")
    with running_server({**database.settings, **BEHIND_A_PROXY}) as server:
        yield Site(server, database)


def test_a_key_opens_a_session_with_the_rights_of_the_key(site: Site) -> None:
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


def test_the_cookie_is_out_of_reach_of_scripts_other_sites_and_other_hosts(site: Site) -> None:
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


def test_a_log_in_leads_to_the_page_that_was_wanted(site: Site) -> None:
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


def test_a_program_gets_a_problem_for_a_wrong_key_and_a_browser_gets_the_page(site: Site) -> None:
    _, key = site.user()

    with site.browser() as http:
        problem = log_in(http, key + "x")
        http.headers["accept"] = HTML
        page = log_in(http, key + "x", next="/v1/jobs")

    assert "is not one of this server's" in problem_of(problem, 401, "unauthorized", None)
    assert page.status_code == 303
    assert page.headers["location"] == "login?failed=key&next=%2Fv1%2Fjobs"
    assert "set-cookie" not in page.headers


def test_wrong_keys_in_the_form_count_as_wrong_keys_in_a_header_do(site: Site) -> None:
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


def test_a_user_cannot_log_in_without_end(site: Site) -> None:
    _, key = site.user()

    with site.browser() as http:
        answers = [log_in(http, key) for _ in range(14)]

    statuses = [answer.status_code for answer in answers]
    assert 10 <= statuses.count(303) < 14
    assert statuses[-1] == 429
    assert "logs in too often" in problem_of(answers[-1], 429, "busy", None)


def test_a_log_in_never_takes_over_a_token_that_was_there_before(site: Site) -> None:
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


def test_over_tls_a_cookie_without_the_prefix_opens_nothing(site: Site) -> None:
    name, key = site.user()
    with site.browser() as http:
        token = cookie_in(log_in(http, key))[1]

    found = []
    for cookie in ("warpcall", "__Secure-warpcall", "__Host-warpcall"):
        with site.browser(https=True, cookie=f"{cookie}={token}") as http:
            found.append(who(http))

    assert found == ["", "", name], "another host of the domain could have planted the others"


def test_two_cookies_of_the_name_open_nothing(site: Site) -> None:
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
def test_what_is_not_quite_a_token_opens_nothing(site: Site, change: object) -> None:
    _, key = site.user()
    with site.browser() as http:
        token = cookie_in(log_in(http, key))[1]
        http.cookies.clear()

        answer = http.get("/v1/me", headers={"cookie": f"warpcall={change(token)}"})  # type: ignore[operator]

    assert problem_of(answer, 401, "unauthorized", None) == ENDED
    assert token[20:] not in answer.text


def test_a_key_in_the_header_is_taken_before_the_session(site: Site) -> None:
    _, key = site.user()
    other, others_key = site.user()

    with site.logged_in(key) as http:
        wrong = http.get("/v1/me", headers={"authorization": "Bearer wrong"}).status_code
        right = http.get("/v1/me", headers={"authorization": f"Bearer {others_key}"}).json()

    assert wrong == 401
    assert right["name"] == other


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
    name, key = site.user(lifetime_s=4)

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
        log_in(http, key)
    rows = site.database.listed("sessions", "list", "--user", name)
    assert len(rows) == 1, "a log-in deletes what has expired"


@pytest.mark.parametrize("how", ["log out", "expire"])
def test_a_request_in_progress_ends_with_its_session(site: Site, how: str) -> None:
    name, key = site.user()
    with site.logged_in(key) as http:
        head = (
            f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: x\r\nCookie: {http.headers['cookie']}\r\n"
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


def test_neither_the_database_nor_the_log_has_a_token(site: Site) -> None:
    _, key = site.user()
    with site.browser() as http:
        answer = log_in(http, key)
        secret = cookie_in(answer)[1][20:]
        keep(http, answer)
        assert who(http)

    folder = Path(site.database.settings["WARPCALL_DATA_DIR"])
    stored = b"".join(file.read_bytes() for file in folder.glob("warpcall.sqlite3*"))
    assert b"ws_" not in stored
    assert secret.encode() not in stored
    assert secret not in (log := log_of(site.server))
    assert key[12:] not in log


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"key=" + b"x" * 9000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a%d=b" % i for i in range(9)), "application/x-www-form-urlencoded", 422),
        (b"key=\xff", "application/x-www-form-urlencoded", 422),
        (b"key=%ff%00", "application/x-www-form-urlencoded", 401),
        (b"", "application/x-www-form-urlencoded", 401),
        (b'{"key": "x"}', "application/json", 415),
        (b"", "", 415),
    ],
)
def test_a_form_that_is_none_is_refused(
    site: Site, content: bytes, media: str, status: int
) -> None:
    with site.browser() as http:
        answer = http.post("/login", content=content, headers={"content-type": media})

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


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


def test_without_a_database_sessions_go_on_and_nobody_logs_in(sqlite: Database) -> None:
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    name, away = "alice", folder.with_name("away")
    key = sqlite.key(name)
    with running_server({**sqlite.settings, **BEHIND_A_PROXY}) as server:
        site = Site(server, sqlite)
        with site.logged_in(key) as http, site.browser() as other:
            away.mkdir()
            for file in folder.glob("warpcall.sqlite3*"):
                shutil.move(file, away)
            until(lambda: "cannot be read" in http.get("/readyz").text)

            opened = who(http)
            refused = log_in(other, key)
            other.headers["accept"] = HTML
            page = log_in(other, key)
            kept = http.post("/logout")
            still = who(http)
            for file in away.iterdir():
                shutil.move(file, folder)
            until(lambda: http.post("/logout").status_code in (303, 401))
            ended = who(http)

    assert (opened, still, ended) == (name, name, "")
    problem_of(refused, 503, "unavailable", None)
    problem_of(kept, 503, "unavailable", None)
    assert page.headers["location"].startswith("login?failed=unavailable&")


def test_a_server_without_keys_needs_no_session(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        answers = [
            log_in(http, "anything", next="/v1/jobs"),
            http.post("/logout"),
            http.post("/logout-everywhere"),
        ]
        name = who(http)

    assert [answer.headers["location"] for answer in answers] == ["./v1/jobs", "./", "./"]
    assert not [answer for answer in answers if "set-cookie" in answer.headers]
    assert name == "local"


def test_the_administrators_commands_name_what_is_wrong(site: Site) -> None:
    database = site.database

    assert "there is no session 'x'" in database.command("sessions", "revoke", "x", status=1)
    assert "there is no user 'x'" in database.command("sessions", "list", "--user", "x", status=1)
    assert "there is no user 'x'" in database.command("sessions", "revoke", "--user", "x", status=1)
    assert "either a session or --user" in database.command("sessions", "revoke", status=2)
    assert json.loads(database.command("sessions", "list", "--json")) is not None
