"""The page of administrators: users, keys that are shown once, sessions, usage."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.forms.conftest import FormsApp
from tests.app.harness import running_app
from tests.forms.fields import MARKUP, errors_of, fields_of, new_word
from tests.service.requests import well
from tests.waiting import until
from warpcall_bench.forms.admin import SentForms

KEY = re.compile(r'<pre class="secret">(wc_[0-9a-f]{8}_[\w-]+)</pre>')


def add_user(lab: FormsApp) -> str:
    name = new_word()
    answer = lab.admin.post("/admin/users", data={"name": name})
    assert (answer.status_code, answer.headers["location"]) == (303, "../admin#users")
    return name


def create_key(lab: FormsApp, user: str, role: str = "call", **fields: Any) -> httpx.Response:
    token = fields_of(lab.admin.get("/admin"))["token"]
    data = {"token": token, "user": user, "role": role, "lifetime": "7 days", **fields}
    return lab.admin.post("/admin/keys", data=data)


def new_key(lab: FormsApp, user: str, role: str = "call") -> str:
    answer = create_key(lab, user, role)
    assert answer.status_code == 200, errors_of(answer)
    found = KEY.search(answer.text)
    assert found is not None
    return found[1]


def key_id(key: str) -> str:
    return key[3:11]


def test_an_administrator_adds_a_user_with_a_key_and_revokes_it(lab: FormsApp) -> None:
    user = add_user(lab)
    key = new_key(lab, user, "bench")

    with lab.browser(key) as http:
        me = http.get("/v1/me").json()
        assert (me["name"], me["role"]) == (user, "bench")
        page = lab.admin.get("/admin").text
        answer = lab.admin.post(f"/admin/keys/{key_id(key)}/revoke")
        after = http.get("/v1/me").status_code

    assert f"wc_{key_id(key)}" in page
    assert (answer.status_code, answer.headers["location"]) == (303, "../../../admin#keys")
    assert after == 401
    assert [one.revoked_at is not None for one in lab.api_keys(user)] == [True]


def test_a_key_is_shown_once(lab: FormsApp) -> None:
    user = add_user(lab)
    token = fields_of(lab.admin.get("/admin"))["token"]

    first = create_key(lab, user, token=token)
    again = create_key(lab, user, token=token)

    secret = KEY.search(first.text)
    assert secret is not None
    assert first.headers["cache-control"] == "no-store"
    assert (again.status_code, KEY.search(again.text)) == (422, None)
    assert "sent before" in errors_of(again)[""]
    assert len(lab.api_keys(user)) == 1
    assert secret[1] not in lab.admin.get("/admin").text


def test_what_is_remembered_of_sent_forms_is_bounded() -> None:
    tokens = SentForms(most=3)

    for token in "abcd":
        tokens.add(token)
    tokens.remove("c")

    assert [token in tokens for token in "abcde"] == [False, True, False, True, False]


def test_a_disabled_user_is_out_until_they_are_enabled(lab: FormsApp) -> None:
    user = add_user(lab)
    key = new_key(lab, user)

    with lab.browser(key) as http:
        statuses = []
        for change in ("disable", "disable", "enable"):
            answer = lab.admin.post(f"/admin/users/{user}/{change}")
            assert answer.status_code == 303
            statuses.append(http.get("/v1/me").status_code)

    assert statuses == [401, 401, 200]


def test_a_session_is_ended_from_the_page(lab: FormsApp) -> None:
    user = add_user(lab)
    key = new_key(lab, user)
    with lab.browser() as http:
        opened = http.post("/login", data={"key": key})
        http.headers["cookie"] = opened.headers["set-cookie"].partition(";")[0]
        http.cookies.clear()
        assert http.get("/jobs").status_code == 200
        row = re.search(
            rf"<tr><td>{user}</td>.*?/sessions/(\w+)/end", lab.admin.get("/admin").text, re.DOTALL
        )
        assert row is not None

        ended = [lab.admin.post(f"/admin/sessions/{row[1]}/end") for _ in range(2)]

        assert [answer.status_code for answer in ended] == [303, 303]
        assert http.get("/jobs").status_code == 303


def test_administrators_cannot_lock_themselves_out(lab: FormsApp) -> None:
    answers = [
        lab.admin.post("/admin/users/admin/disable"),
        lab.admin.post(f"/admin/keys/{key_id(lab.keys['admin'])}/revoke"),
    ]

    assert [answer.status_code for answer in answers] == [422, 422]
    assert "yourself" in errors_of(answers[0])[""]
    assert "logged in with" in errors_of(answers[1])[""]
    assert lab.admin.get("/admin").status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "field", "text"),
    [
        ("users", {"name": ""}, "name", "must"),
        ("users", {"name": "Bob"}, "name", "Bob"),
        ("users", {"name": "admin"}, "name", "there is a user admin"),
        ("users", {"name": MARKUP}, "name", MARKUP[:8]),
        ("keys", {"role": MARKUP}, "role", "must be call, bench, upload, scratch, admin"),
        ("keys", {"lifetime": MARKUP}, "lifetime", "the time must be"),
        ("keys", {"user": "nobody"}, "user", "nobody"),
        ("keys", {"user": MARKUP}, "user", "there is no user"),
        ("keys", {"token": ""}, "", "sent before"),
        ("users/nobody/disable", {}, "", "nobody"),
        ("keys/00000000/revoke", {}, "", "00000000"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    lab: FormsApp, path: str, fields: dict[str, str], field: str, text: str
) -> None:
    before = lab.users(), [one.id for one in lab.api_keys()]
    token = fields_of(lab.admin.get("/admin"))["token"][0]
    given = {"token": token, "user": "call", "role": "call", "lifetime": "never", **fields}

    page = lab.admin.post(f"/admin/{path}", data=given)

    assert page.status_code in (404, 422)
    assert text in errors_of(page).get(field, "") or text in unescape(page.text)
    assert field in errors_of(page) or page.status_code == 404
    assert MARKUP not in page.text
    assert (lab.users(), [one.id for one in lab.api_keys()]) == before


def test_for_all_others_there_is_nothing(lab: FormsApp) -> None:
    posts = ["users", "keys", "users/call/disable", "keys/00000000/revoke", "sessions/0/end"]

    for name in ("call", "bench", "upload", "scratch"):
        http = lab.browsers[name]
        answers = [http.get("/admin"), *(http.post(f"/admin/{path}", data={}) for path in posts)]

        assert [answer.status_code for answer in answers] == [404] * len(answers)
        assert "There is nothing at" in answers[0].text
        assert "admin" not in http.get("/jobs").text
    assert lab.admin.post("/admin/users/call/delete").status_code == 404
    assert lab.browsers["call"].get("/v1/me").status_code == 200


def test_a_page_of_another_site_changes_nothing(lab: FormsApp) -> None:
    with lab.app.client() as http:
        opened = http.post("/login", data={"key": lab.keys["admin"]})
        cookie = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
        name = new_word()
        http.cookies.clear()

        other = http.post(
            "/admin/users", data={"name": name}, headers={**cookie, "sec-fetch-site": "cross-site"}
        )
        own = http.post(
            "/admin/users", data={"name": name}, headers={**cookie, "sec-fetch-site": "same-origin"}
        )

    assert (other.status_code, own.status_code) == (403, 303)


def test_the_usage_of_each_user_is_seen(lab: FormsApp) -> None:
    assert well(lab.browsers["other"]).status_code == 200

    def row() -> re.Match[str] | None:
        page = lab.admin.get("/admin").text
        return re.search(r"<tr><td>other.*?</tr>", page, re.DOTALL)

    until(lambda: (found := row()) is not None and 'class="blocks" d="M29 ' in found[0])
    page = lab.admin.get("/admin?by=day").text

    assert "WARPCALL_USER_MAX_JOBS" in page
    assert re.search(r"<td>other</td><td class=\"num\">\d", page)


def test_a_server_without_keys_changes_nothing(tmp_path: Path) -> None:
    with running_app(data_dir=tmp_path) as app, app.client() as http:
        http.headers["accept"] = "text/html"
        page = http.get("/admin")
        answers = [
            http.post("/admin/users", data={"name": "ann"}),
            http.post("/admin/users/local/enable"),
            http.post("/admin/keys", data={"user": "ann", "role": "admin", "lifetime": "never"}),
            http.post("/admin/sessions/0/end"),
        ]

    assert page.status_code == 200
    assert "This server has no keys" in page.text
    assert all(answer.status_code in (403, 422) for answer in answers)
