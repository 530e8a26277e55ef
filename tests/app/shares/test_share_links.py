"""Share links over HTTP: what they open without a key, to whom, and until when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.app.harness import in_python, running_app
from tests.app.sites import AppSite
from tests.service.auth.browsers import keep, log_in
from tests.service.databases import Database
from tests.service.requests import problem_of
from tests.service.stored import IMPLEMENTATIONS, finished, number
from tests.waiting import until
from warpcall_bench.jobs.tables import Job
from warpcall_service.auth import users

WAYS = ("", "/results", "/results?format=csv", "/results?samples=true")  # to read one job
NOTHING = "this share link does not exist, has expired or was revoked"
PAGES = ("", "/cases/0")
FACTS = {"device": "an H200", "torch": "2.0", "host": "gpu-box-7", "uuid": "GPU-1234"}


@dataclass(frozen=True)
class Lab:
    """The application, the keys of users, and jobs: `first` and `second` of alice's, `theirs` of bob's."""

    site: AppSite
    keys: dict[str, str]
    first: str
    second: str
    theirs: str

    def http(self, user: str) -> httpx.Client:
        return self.site.browser(authorization=f"Bearer {self.keys[user]}")

    def share(self, user: str = "alice", job: str = "", **body: Any) -> dict[str, Any]:
        """A new link."""
        with self.http(user) as http:
            answer = http.post(f"/v1/jobs/{job or self.first}/shares", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("shares"))})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob", "carol")}
    keys |= {"caller": database.key("caller"), "root": database.key("root", "admin")}
    store = database.store()
    jobs = [finished(store, user, 2, seed=i) for i, user in enumerate(("alice", "alice", "bob"))]
    with store.write() as session:
        session.get_one(Job, number(store, jobs[0])).fingerprint = str(FACTS).replace("'", '"')
    store.close()
    with running_app(runs_jobs=False, **in_python(database.settings)) as app:
        yield Lab(AppSite(app, database), keys, *jobs)


def read(lab: Lab, made: dict[str, Any], way: str = "", **headers: str) -> httpx.Response:
    """Open a link without a key, at an address of its own."""
    with lab.site.browser(headers) as http:
        return http.get(f"/v1/shared/{token_of(made)}{way}")


def token_of(made: dict[str, Any]) -> str:
    url: str = made["url"]
    assert re.fullmatch(r"/share/sh_[A-Za-z0-9_-]{43}", url)
    return url.removeprefix("/share/")


def opens(lab: Lab, made: dict[str, Any]) -> bool:
    """Whether a link opens its job, in each way; it must be the same for all."""
    answers = [read(lab, made, way) for way in WAYS]
    with lab.site.browser(accept="text/html") as http:
        pages = PAGES if made["other"] is None else PAGES[:1]
        answers += [http.get(f"{made['url']}{page}") for page in pages]
    statuses = {answer.status_code for answer in answers}
    assert statuses in ({200}, {404})
    for answer in answers:  # nothing says why a link opens nothing
        assert answer.status_code == 200 or NOTHING in answer.text.lower()
    return statuses == {200}


def test_whoever_has_the_link_reads_the_job_without_a_key(lab: Lab) -> None:
    made = lab.share()

    shown = read(lab, made).json()
    results = read(lab, made, "/results").json()
    table = read(lab, made, "/results?format=csv")
    with_samples = read(lab, made, "/results?samples=true").json()

    assert (made["job"], made["other"], made["user"]) == (lab.first, None, "alice")
    assert made["expires_at"] is None
    assert shown["job"]["id"] == results["id"] == lab.first
    assert shown["other"] is None
    assert len(results["measurements"]) == 2 * len(IMPLEMENTATIONS)
    assert table.headers["content-type"].startswith("text/csv")
    assert with_samples["cases"][0]["samples_us"]


def test_a_guest_does_not_learn_the_names_of_machines(lab: Lab) -> None:
    made = lab.share()

    answers = [read(lab, made), read(lab, made, "/results")]
    with lab.site.browser(accept="text/html") as http:
        answers += [http.get(f"{made['url']}{page}") for page in PAGES]

    for answer in answers[:2]:
        assert '"torch":"2.0"' in answer.text
    for answer in answers:
        assert answer.status_code == 200
        assert FACTS["host"] not in answer.text
        assert FACTS["uuid"] not in answer.text
    with lab.http("bob") as http:
        assert http.get(f"/v1/jobs/{lab.first}").json()["fingerprint"] == FACTS


def test_a_link_to_a_comparison_shows_both_jobs_and_how_they_compare(lab: Lab) -> None:
    made = lab.share(other=lab.second)

    shown = read(lab, made).json()
    other = read(lab, made, "/results?of=other").json()
    compared = read(lab, made, "/compare")

    assert (shown["job"]["id"], shown["other"]["id"]) == (lab.first, lab.second)
    assert other["id"] == lab.second
    assert (compared.json()["a"], compared.json()["b"]) == (lab.first, lab.second)
    assert len(compared.json()["rows"]) == 2 * len(IMPLEMENTATIONS)


def test_a_link_to_one_job_shows_no_other_one(lab: Lab) -> None:
    made = lab.share()

    answers = [read(lab, made, way) for way in ("/results?of=other", "/compare")]

    for answer in answers:
        assert answer.status_code == 404
        assert "shows one job" in answer.json()["detail"]


def test_a_link_is_no_key(lab: Lab) -> None:
    token = token_of(lab.share())
    with lab.site.browser() as http:
        paths = [
            "/v1/jobs",
            f"/v1/jobs/{lab.first}",
            f"/v1/shares?token={token}",
            "/v1/shared",
            f"/v1/shared/../jobs/{lab.first}",
            f"/v1/shared/%2e%2e/jobs/{lab.first}",
        ]
        answers = {path: http.get(path) for path in paths}
        answers["key"] = http.get("/v1/me", headers={"authorization": f"Bearer {token}"})
        answers["cookie"] = http.get("/v1/me", headers={"cookie": f"warpcall={token}"})
        changes = [
            http.request(method, f"/v1/shared/{token}{path}")
            for method in ("POST", "PUT", "PATCH", "DELETE")
            for path in ("", "/results", "/compare")
        ]
        with_key = http.get(f"/v1/shared/{token}/nothing")

    assert {path: answer.status_code for path, answer in answers.items()} == {
        **dict.fromkeys(answers, 401),
        f"/v1/shared/%2e%2e/jobs/{lab.first}": 404,
    }
    assert {answer.status_code for answer in changes} == {405}
    assert with_key.status_code == 404


def test_a_revoked_link_opens_nothing(lab: Lab) -> None:
    made, kept = lab.share(), lab.share()
    before = opens(lab, made)

    with lab.http("alice") as http:
        unknown = [http.delete(f"/v1/shares/{part}") for part in ("%25", "_", made["id"][:3])]
        revoked = http.delete(f"/v1/shares/{made['id'][:8]}")
        again = http.delete(f"/v1/shares/{made['id']}")

    assert (before, opens(lab, made), opens(lab, kept)) == (True, False, True)
    assert [one.status_code for one in (*unknown, revoked, again)] == [404, 404, 404, 204, 404]


def test_an_expired_link_opens_nothing_and_is_not_listed(lab: Lab) -> None:
    made = lab.share(expires_s=3600)
    before = opens(lab, made)

    lab.site.database.sql(f"UPDATE shares SET expires_at = 1 WHERE id = '{made['id']}'")

    assert made["expires_at"] > made["created_at"]
    assert (before, opens(lab, made)) == (True, False)
    with lab.http("alice") as http:
        listed = http.get("/v1/shares").json()["shares"]
    assert made["id"] not in [share["id"] for share in listed]


def test_a_link_opens_nothing_while_its_job_is_private(lab: Lab) -> None:
    alone, pair, others = (
        lab.share(job=lab.second),
        lab.share(other=lab.second),
        lab.share(),
    )
    with lab.http("alice") as http:
        http.patch(f"/v1/jobs/{lab.second}", json={"private": True})
        hidden = [opens(lab, made) for made in (alone, pair, others)]
        refused = http.post(f"/v1/jobs/{lab.first}/shares", json={"other": lab.second})
        http.patch(f"/v1/jobs/{lab.second}", json={"private": False})
        shown = [opens(lab, made) for made in (alone, pair, others)]

    assert hidden == [False, False, True]
    assert shown == [True, True, True]
    assert "is private, so no link can show it" in problem_of(refused, 422, "invalid-input", "id")


def change_carol(lab: Lab, *, disabled: bool) -> None:
    store = lab.site.database.store()
    with store.write() as session:
        users.disable_user(session, "carol", disabled=disabled)
    store.close()


def test_a_link_opens_nothing_while_the_user_who_made_it_is_disabled(lab: Lab) -> None:
    store = lab.site.database.store()
    job = finished(store, "carol", 1)
    store.close()
    made = lab.share("carol", job)
    before = opens(lab, made)

    change_carol(lab, disabled=True)
    until(lambda: read(lab, made).status_code == 404)
    disabled = opens(lab, made)
    change_carol(lab, disabled=False)
    until(lambda: read(lab, made).status_code == 200)

    assert (before, disabled, opens(lab, made)) == (True, False, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token.removeprefix("sh_"),
        lambda token: token.upper(),
        lambda token: "x",
        lambda token: "%00",
        lambda token: "sh_" + "'" * 43,
    ],
)
def test_what_is_not_quite_a_token_opens_nothing(lab: Lab, change: Any) -> None:
    token = token_of(lab.share())

    for way in WAYS:
        answer = read(lab, {"url": f"/share/{token}"}, way)
        with lab.site.browser() as http:
            wrong = http.get(f"/v1/shared/{change(token)}{way}")

        assert answer.status_code == 200
        assert NOTHING in problem_of(wrong, 404, "not-found", None)


def test_the_id_of_a_link_does_not_open_it(lab: Lab) -> None:
    made = lab.share()

    with lab.site.browser() as http:
        answers = [http.get(f"/v1/shared/{name}") for name in (made["id"], f"sh_{made['id']}")]

    assert [answer.status_code for answer in answers] == [404, 404]


def test_guesses_are_slowed_down_as_wrong_keys_are_and_right_links_are_not(lab: Lab) -> None:
    made = lab.share()
    with lab.site.browser() as http:
        wrong = [http.get(f"/v1/shared/sh_{i:043}") for i in range(30)]
        right = http.get(f"/v1/shared/{token_of(made)}").status_code
        key = http.get("/v1/me", headers={"authorization": "Bearer wrong"}).status_code

    statuses = [answer.status_code for answer in wrong]
    allowed = statuses.count(404)
    assert 10 <= allowed <= 13
    assert statuses == [404] * allowed + [429] * (30 - allowed)
    assert "too many wrong share links from" in problem_of(wrong[-1], 429, "busy", None)
    assert (right, key) == (200, 429)


@pytest.mark.parametrize(
    ("user", "status"), [("alice", 201), ("root", 201), ("bob", 403), ("caller", 403)]
)
def test_only_the_user_of_a_job_and_administrators_share_it(
    lab: Lab, user: str, status: int
) -> None:
    with lab.http(user) as http:
        answer = http.post(f"/v1/jobs/{lab.first}/shares", json={})

    assert answer.status_code == status


def test_a_comparison_with_the_job_of_another_user_is_for_administrators(lab: Lab) -> None:
    statuses = {}
    for user in ("alice", "bob", "root"):
        with lab.http(user) as http:
            body = {"other": lab.theirs}
            statuses[user] = http.post(f"/v1/jobs/{lab.first}/shares", json=body).status_code

    assert statuses == {"alice": 403, "bob": 403, "root": 201}


def test_links_are_listed_and_revoked_by_those_who_may(lab: Lab) -> None:
    mine, roots = lab.share(), lab.share("root")

    def listed(user: str, path: str) -> set[str]:
        with lab.http(user) as http:
            answer = http.get(path)
        assert answer.status_code == 200
        assert "sh_" not in answer.text
        return {share["id"] for share in answer.json()["shares"]} & {mine["id"], roots["id"]}

    both = {mine["id"], roots["id"]}
    of_job = f"/v1/jobs/{lab.first}/shares"
    assert listed("alice", of_job) == listed("root", of_job) == both
    assert listed("alice", "/v1/shares") == {mine["id"]}
    assert listed("root", "/v1/shares") == {roots["id"]}
    assert listed("alice", "/v1/shares?user=all") == listed("root", "/v1/shares?user=all") == both
    assert listed("bob", "/v1/shares?user=all") == listed("bob", "/v1/shares?user=alice") == set()
    with lab.http("bob") as http:
        assert http.get(of_job).status_code == 403
        assert http.delete(f"/v1/shares/{mine['id']}").status_code == 404
    assert opens(lab, mine)
    with lab.http("alice") as http:
        assert http.delete(f"/v1/shares/{roots['id']}").status_code == 204, "a link to her job"
    with lab.http("root") as http:
        assert http.delete(f"/v1/shares/{mine['id']}").status_code == 204
    assert not opens(lab, mine)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expires_s": 0}, "expires_s"),
        ({"expires_s": -1}, "expires_s"),
        ({"expires_s": 1e9}, "expires_s"),
        ({"expires_s": "7d"}, "expires_s"),
        ({"other": ""}, "other"),
        ({"other": 7}, "other"),
        ({"more": 1}, "more"),
        ([], "body"),
    ],
)
def test_a_bad_description_of_a_link_is_refused_with_its_field_named(
    lab: Lab, body: Any, field: str
) -> None:
    with lab.http("alice") as http:
        answer = http.post(f"/v1/jobs/{lab.first}/shares", json=body)

    problem_of(answer, 422, "invalid-input", field)


def test_a_link_to_a_job_that_is_not_there_is_not_made(lab: Lab) -> None:
    with lab.http("alice") as http:
        answers = [
            http.post("/v1/jobs/0123456789ab/shares", json={}),
            http.post(f"/v1/jobs/{lab.first}/shares", json={"other": "0123456789ab"}),
        ]

    assert [answer.status_code for answer in answers] == [404, 404]


def test_all_guests_are_counted_together_under_a_name_that_no_user_has(lab: Lab) -> None:
    made = lab.share()
    assert opens(lab, made)

    with lab.http("root") as http:

        def counted() -> str:
            return http.get("/metrics").text

        until(lambda: 'warpcall_user_requests_total{user="share links"}' in counted())


def test_a_session_shares_and_revokes_too(lab: Lab) -> None:
    with lab.site.browser() as http:
        keep(http, log_in(http, lab.keys["alice"]))
        made = http.post(f"/v1/jobs/{lab.first}/shares", json={}).json()
        before = opens(lab, made)
        http.delete(f"/v1/shares/{made['id']}")

    assert (before, opens(lab, made)) == (True, False)
