"""Who may read a job: every user, or, if it is private, its user and administrators only."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.app.harness import App, running_app
from tests.service import job_rows
from tests.service.app_routes import app_routes
from tests.service.artefacts.kept import TEXT, keeping
from tests.service.databases import Database
from tests.service.job_requests import CASE
from tests.service.requests import problem_of
from tests.service.stored import IMPLEMENTATIONS, finished, number
from tests.waiting import until
from warpcall_bench.jobs import printed
from warpcall_bench.jobs.tables import Job, Measurement
from warpcall_bench.runs.events import Printed

MARK = "marmalade"  # in every text of the private job that its user chose
NOWHERE = "0123456789ab"
READERS = ("alice", "root")  # of the private job
OTHERS = ("bob", "caller")
# What each page can tell of a job.
ABOUT_A_JOB = (
    ("GET", "/jobs/{id}"),
    ("GET", "/jobs/{id}/cases/{position}"),
    ("GET", "/jobs/{id}/regression"),
    ("GET", "/compare?a={id}"),
    ("GET", "/compare?a={id}&b={other}"),
    ("GET", "/new?like={id}"),
    ("POST", "/jobs/{id}/cancel"),
    ("POST", "/jobs/{id}/again"),
    ("POST", "/jobs/{id}/private"),
    ("GET", "/jobs/{id}/shares"),
    ("POST", "/jobs/{id}/shares"),
)
BOARDS = (
    "/v1/board?op=permute",
    "/v1/board?op=permute&device=a%20machine&case=case%200",
)
FOR_BENCH = ("/new?like={id}", "/jobs/{id}/shares")  # pages that take the role
LISTS = {
    "/": "/",
    "/jobs": f"/jobs?tag={MARK}",
    "/history": "/history",
    "/board": "/board?op=permute&device=a%20machine&case=case%200",
    "/kernels": "/kernels",
    "/shares": "/shares?user=all",
    "/kernels/{name}": "/kernels/permute",
    "/implementations/{user}/{name}": "/implementations/alice/x",
    "/problems/{user}/{name}": "/problems/alice/x",
}
# tests/service/shares asks the pages below /share, tests/forms those that change links,
# tests/service/monitors those of monitors, and test_group_visibility.py those of groups.
NAMES_NO_JOB = re.compile(
    r"/(account|admin|call|compiled|docs|guide|install|share|start|static|log(in|out.*)|upload|modules|monitors|groups)(/.*)?|/new|/shares/.*"
)
NO_PAGE = re.compile(r"HEAD|\w+ /(v1|v2|healthz|readyz|metrics)(/|$)")
# What a request with a body is sent, by the end of its path.
BODIES: dict[str, Any] = {"": {"private": False}, "/shares": {}}


@dataclass(frozen=True)
class Lab:
    """A server with jobs of alice's: all users may read `open`, and nobody else `secret`.

    Attributes:
        running: a job that all may read, and that is said to run elsewhere.
        waiting: a private job that waits.
    """

    app: App
    keys: dict[str, str]
    open: str
    secret: str
    running: str
    waiting: str

    def http(self, user: str) -> httpx.Client:
        return self.app.client(self.keys[user])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys |= {"caller": database.key("caller"), "root": database.key("root", "admin")}
    store = database.store()
    shown = finished(store, "alice", 2)
    secret = finished(store, "alice", 2, private=True, note=f"a {MARK}", tags=[MARK])
    with store.write() as session:  # so that the private job has the best times of all
        session.execute(sa.update(Measurement).values(limit_us=2.0))
        of_secret = Measurement.job_number == number(store, secret)
        session.execute(sa.update(Measurement).where(of_secret).values(limit_us=8.0))
    here = keeping(database, store)
    assert [here.add(job, MARK.encode()) for job in (shown, secret)] == ["", ""]
    here.artefacts._threads.close()
    with store.write() as session:
        row = session.get_one(Job, number(store, secret))
        printed.store(session, row, Printed(0, IMPLEMENTATIONS[0], MARK))
    running = job_rows.submit(store, "alice")
    job_rows.claim(store)
    job_rows.submit(store, "alice")
    job_rows.claim(store)  # so the server starts none of alice's: a user has two that run
    waiting = job_rows.submit(store, "alice", private=True, note=f"a {MARK}", tags=[MARK])
    store.close()
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    # For so long, a job that is said to run elsewhere is left there.
    with running_app(data_dir=folder, arena_bytes="16MiB", job_lease_s=3600) as app:
        yield Lab(app, keys, shown, secret, running, waiting)


def operations(http: httpx.Client) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI description."""
    paths = http.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def of_jobs(http: httpx.Client) -> list[tuple[str, str]]:
    """The operations on one job, or two, with those of the pages."""
    found = [one for one in operations(http) if one[1].startswith("/v1/jobs/{id}")]
    assert len(found) >= 7
    return [*found, *((method, path) for method, path in ABOUT_A_JOB)]


def ask(http: httpx.Client, method: str, path: str, *ids: str) -> httpx.Response:
    """Send a request about the jobs of these ids, with a body if there may be one."""
    for name, value in zip(("{id}", "{other}"), ids, strict=False):
        path = path.replace(name, value)
    path = path.replace("{position}", "0").replace("{name}", TEXT.name)
    if not path.startswith("/v1"):
        data = {"token": "t"} if method == "POST" else None
        return http.request(method, path, data=data, headers={"accept": "text/html"})
    if method in ("GET", "DELETE"):
        return http.request(method, path)
    end = path.removeprefix(f"/v1/jobs/{ids[0]}")
    return http.request(method, path, json=BODIES.get(end, {}))


def test_every_page_that_can_name_a_job_is_among_those_that_are_tested(tmp_path: Path) -> None:
    found = {
        (method, path)
        for method, path in app_routes(tmp_path)
        if not NO_PAGE.match(f"{method} {path}")
    }

    tested = {(method, path.partition("?")[0]) for method, path in ABOUT_A_JOB}
    listed = {("GET", path) for path in LISTS}
    others = {(method, path) for method, path in found if NAMES_NO_JOB.fullmatch(path)}
    assert found == tested | listed | others, "a new page: can it name a job?"


@pytest.mark.parametrize("user", OTHERS)
def test_a_private_job_of_another_user_looks_like_none_on_every_route(lab: Lab, user: str) -> None:
    with lab.http(user) as http:
        for method, path in of_jobs(http):
            if user == "caller" and (method != "GET" or path in FOR_BENCH):
                continue  # the role is refused first
            pairs = [(lab.secret, lab.open), (lab.open, lab.secret), (lab.secret, lab.secret)]
            for first, second in pairs if "{other}" in path else [(lab.secret, "")]:
                answer = ask(http, method, path, first, second)
                absent = [NOWHERE if one == lab.secret else one for one in (first, second)]
                none = ask(http, method, path, *absent)

                assert answer.status_code == none.status_code == 404, (method, path)
                text = answer.text.replace(lab.secret, NOWHERE)
                hidden = (answer.headers["x-request-id"], none.headers["x-request-id"])
                assert text.replace(hidden[0], hidden[1]) == none.text
                assert MARK not in answer.text


@pytest.mark.parametrize("user", OTHERS)
def test_no_list_shows_a_private_job_of_another_user(lab: Lab, user: str) -> None:
    case = f"op=permute&implementation={IMPLEMENTATIONS[0]}&case=case%200"
    with lab.http(user) as http:
        fixed = [path for method, path in operations(http) if method == "GET" and "{" not in path]
        paths = [
            *fixed,
            *LISTS.values(),
            *(f"/v1/jobs?user={name}" for name in ("all", "alice")),
            f"/v1/jobs?user=all&tag={MARK}",
            f"/v1/jobs/history?{case}",
            *BOARDS,
            *(f"/jobs?user={name}" for name in ("alice", "")),
            f"/history?{case}",
        ]
        html = {"accept": "text/html,*/*"}
        answers = {path: http.get(path, headers=html) for path in paths}

    assert len(answers) > 15
    for path, answer in answers.items():
        assert lab.secret not in answer.text, path
        assert f"a {MARK}" not in answer.text, path
    assert lab.open in answers["/v1/jobs?user=all"].text
    assert lab.open in answers[f"/v1/jobs/history?{case}"].text
    for path in (LISTS["/board"], *BOARDS):
        assert lab.open in answers[path].text, path
    with lab.http("root") as http:
        for path in (
            LISTS["/board"],
            *BOARDS,
            f"/v1/jobs/history?{case}",
            f"/history?{case}",
            "/jobs",
        ):
            assert lab.secret in http.get(path, headers=html).text, "it could have been shown"


@pytest.mark.parametrize(
    ("user", "job"),
    [
        *itertools.product((*READERS, *OTHERS), ["open"]),
        *itertools.product(READERS, ["secret"]),
    ],
)
def test_who_may_read_a_job_reads_all_of_it(lab: Lab, user: str, job: str) -> None:
    asked = getattr(lab, job)

    with lab.http(user) as http:
        answers = {
            path: ask(http, "GET", path, asked, lab.open)
            for method, path in of_jobs(http)
            if method == "GET" and not path.endswith("/shares")
            if user != "caller" or path not in FOR_BENCH
        }

    assert len(answers) >= 5
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        answers, 200
    )


def test_lists_are_of_the_callers_own_jobs_unless_asked_otherwise(lab: Lab) -> None:
    def listed(who: str, **query: str) -> set[str]:
        with lab.http(who) as http:
            return {job["id"] for job in http.get("/v1/jobs", params=query).json()["jobs"]}

    assert {lab.open, lab.secret} < listed("alice")
    assert listed("alice") == listed("alice", user="alice") == listed("alice", user="all")
    assert listed("bob") == listed("root") == set()
    assert listed("root", user="all") == listed("alice")
    assert listed("bob", user="all") == listed("alice") - {lab.secret, lab.waiting}
    assert listed("bob", user="nobody") == set()
    with lab.http("bob") as http:
        problem_of(http.get("/v1/jobs", params={"before": lab.secret}), 404, "not-found", "id")


def test_the_history_of_a_case_has_the_jobs_that_the_caller_may_read(lab: Lab) -> None:
    query = {"op": "permute", "implementation": IMPLEMENTATIONS[0], "case": "case 0"}

    found = {}
    for user in ("alice", "root", "bob", "caller"):
        with lab.http(user) as http:
            points = http.get("/v1/jobs/history", params=query).json()["points"]
        found[user] = [point["job"] for point in points]

    assert found["alice"] == found["root"] == [lab.secret, lab.open]
    assert found["bob"] == found["caller"] == [lab.open]


def test_everyone_sees_in_the_queue_that_a_private_job_waits(lab: Lab) -> None:
    with lab.http("bob") as http:
        entries = http.get("/v1/jobs/queue").json()["entries"]

    waiting = next(entry for entry in entries if entry["id"] == lab.waiting)
    assert (waiting["user"], waiting["state"]) == ("alice", "queued")
    cases = {entry["id"]: entry["first_case"] for entry in entries}
    assert (cases[lab.waiting], cases[lab.running]) == ("", "case 0")
    assert MARK not in json.dumps(entries)


def test_only_its_user_and_administrators_change_a_job_that_all_may_read(lab: Lab) -> None:
    with lab.http("bob") as http:
        answers = [
            http.post(f"/v1/jobs/{lab.running}/cancel"),
            http.patch(f"/v1/jobs/{lab.running}", json={"private": True}),
        ]

    for answer in answers:
        said = problem_of(answer, 403, "forbidden", "id")
        assert said == f"only alice and administrators may change the job {lab.running}"
    with lab.http("alice") as http:
        job = http.get(f"/v1/jobs/{lab.running}").json()
    assert (job["cancel_requested"], job["private"]) == (False, False)


@pytest.mark.parametrize("user", READERS)
def test_a_job_is_made_private_and_readable_again(lab: Lab, user: str) -> None:
    path = f"/v1/jobs/{lab.open}"
    with lab.http(user) as http, lab.http("bob") as bob:
        private = http.patch(path, json={"private": True})
        hidden = bob.get(path).status_code
        readable = http.patch(path, json={"private": False})
        shown = bob.get(path).status_code

    assert [private.json()["private"], readable.json()["private"]] == [True, False]
    assert (hidden, shown) == (404, 200)


@pytest.mark.parametrize("body", [{}, {"private": None}, {"private": "no"}, {"note": "x"}, []])
def test_a_change_that_is_none_is_refused(lab: Lab, body: Any) -> None:
    with lab.http("alice") as http:
        answer = http.patch(f"/v1/jobs/{lab.open}", json=body)

    assert answer.status_code == 422
    assert answer.json()["field"] in ("private", "body", "note")


def test_who_watches_a_job_that_becomes_private_sees_no_more_of_it(lab: Lab) -> None:
    path = f"/v1/jobs/{lab.running}"
    seen = {user: 0 for user in ("alice", "bob")}
    ended = {user: threading.Event() for user in seen}

    def watch(user: str) -> None:
        with lab.http(user) as http, http.stream("GET", f"{path}/events") as answer:
            for line in answer.iter_lines():
                seen[user] += line.startswith("data: ")
        ended[user].set()

    for user in seen:
        threading.Thread(target=watch, args=(user,), daemon=True).start()
    until(lambda: min(seen.values()) == 2)
    with lab.http("alice") as http:
        assert http.patch(path, json={"private": True}).status_code == 200

        assert ended["bob"].wait(30)
        assert not ended["alice"].is_set()
        with lab.http("bob") as bob:
            assert bob.get(f"{path}/events").status_code == 404
        assert http.patch(path, json={"private": False}).status_code == 200


def test_a_submission_says_who_may_read_the_job(lab: Lab) -> None:
    asked = {"op": "permute", "implementations": ["torch"], "cases": [CASE], "precision": "quick"}
    with lab.http("alice") as http:
        for private in (None, False, True):
            answer = http.post("/v1/jobs", json={**asked, "fresh": True, "private": private})
            job = answer.json()
            http.post(f"/v1/jobs/{job['id']}/cancel")

            assert answer.status_code == 201
            assert job["private"] is bool(private)
