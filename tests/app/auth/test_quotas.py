"""Quotas: a user's beat those of their role, and these the settings, and each of them refuses."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.app.harness import App, running_app
from tests.oip import requests as oip
from tests.service.databases import Database
from tests.service.job_requests import JOB
from tests.service.requests import PERMUTE, SAFETENSORS, npy, problem_of
from tests.waiting import until
from warpcall import wire
from warpcall.wire import TensorInfo
from warpcall_bench.settings import BenchSettings
from warpcall_service.quotas import DEVICE_S, Quotas, names

MIB = 1 << 20
X = safetensors.numpy.save({"x": np.zeros(4096, np.uint8)})
SOURCE = "def copied(x, dims):\n    return x.permute(dims).contiguous()\n"
KIB = {"content-type": SAFETENSORS}


@dataclass
class Lab:
    """An application, its administrator, and new users with the role upload."""

    app: App
    database: Database
    admin: httpx.Client
    keys: dict[str, str] = field(default_factory=dict)

    def user(self, name: str = "") -> tuple[str, httpx.Client]:
        """A user, by default a new one, and a client of theirs."""
        name = name or f"u{len(self.keys)}"
        if name not in self.keys:
            self.keys[name] = self.database.key(name, "upload")
            until(lambda: self.app.client(self.keys[name]).get("/v1/me").status_code == 200)
        return name, self.app.client(self.keys[name])

    def put(self, subject: str, quota: str, limit: object) -> httpx.Response:
        return self.admin.put(f"/v1/admin/quotas/{subject}/{quota}", json={"limit": limit})

    def set(self, subject: str, quota: str, limit: object) -> None:
        answer = self.put(subject, quota, limit)
        assert answer.status_code == 200, answer.text

    def remove(self, subject: str, quota: str) -> int:
        return self.admin.delete(f"/v1/admin/quotas/{subject}/{quota}").status_code

    def quotas(self, user: str) -> dict[str, dict[str, Any]]:
        found = self.admin.get(f"/v1/admin/quotas/user/{user}").json()["quotas"]
        return {one["name"]: one for one in found}


# The server checks uploads in processes.
pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("quotas")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    admin = database.key("root", "admin")
    settings: dict[str, Any] = {"arena_bytes": "64MiB", "uploads": "trusted"}
    with running_app(runs_jobs=False, data_dir=folder, **settings) as app:
        yield Lab(app, database, app.client(admin))


@pytest.fixture(autouse=True)
def _no_quota_stays(lab: Lab) -> Iterator[None]:
    yield
    for one in lab.admin.get("/v1/admin/quotas").json()["quotas"]:
        lab.remove(f"{one['kind']}/{one['subject']}", one["name"])


def call(http: httpx.Client, body: bytes = X) -> httpx.Response:
    return http.post(f"{PERMUTE}?dims=0", content=body, headers=KIB)


def store(http: httpx.Client) -> httpx.Response:
    return http.put("/v1/tensors", content=X, headers=KIB)


def submit(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/jobs", json={**JOB, "fresh": True})


def upload(http: httpx.Client) -> httpx.Response:
    asked = {"op": "permute", "function": "copied", "source": SOURCE}
    return http.post("/v1/implementations", json=asked)


def monitor(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/monitors", json={"job": JOB, "every_s": 86_400})


@contextmanager
def slot(lab: Lab, user: str) -> Iterator[None]:
    """Memory that a call of the user has."""

    async def acquire() -> Any:
        return await lab.app.engine.acquire(MIB, 1.0, user)

    found = asyncio.run_coroutine_threadsafe(acquire(), lab.app.loop).result(10)
    yield
    lab.app.loop.call_soon_threadsafe(found.release)
    until(lambda: lab.app.engine.nbytes_of(user) == 0)


@contextmanager
def stream(lab: Lab, user: str) -> Iterator[None]:
    """A request that lasts: the events of a job of the user that waits."""
    http = lab.user(user)[1]
    found = http.get("/v1/jobs", params={"state": "queued"}).json()["jobs"]
    job = found[0]["id"] if found else submit(http).json()["id"]
    before = lab.quotas(user)["user_max_streams"]["used"]
    with http.stream("GET", f"/v1/jobs/{job}/events") as events:
        assert events.status_code == 200
        yield
    until(lambda: lab.quotas(user)["user_max_streams"]["used"] == before)


@contextmanager
def none(lab: Lab, user: str) -> Iterator[None]:
    yield


def second(http: httpx.Client, what: Callable[[httpx.Client], httpx.Response]) -> httpx.Response:
    first = what(http)
    assert first.status_code < 300, first.text
    return what(http)


def events(http: httpx.Client) -> httpx.Response:
    job = http.get("/v1/jobs", params={"state": "queued"}).json()["jobs"][0]["id"]
    with http.stream("GET", f"/v1/jobs/{job}/events") as answer:
        if answer.status_code == 429:
            answer.read()
        return answer


@dataclass(frozen=True)
class Quota:
    """How a quota is used up.

    Attributes:
        limit: one that refuses `request`, which the setting allows.
        beside: what is under way meanwhile.
        status, code, said: of the refusal.
        retries: whether it says when to try again.
    """

    name: str
    limit: object
    request: Callable[[httpx.Client], httpx.Response]
    beside: Callable[[Lab, str], Any] = none
    status: int = 429
    code: str = "busy"
    said: str = ""
    retries: bool = True


QUOTAS = [
    Quota("user_max_requests", 1, call, stream, said="has 1 requests in flight, at most 1"),
    Quota(
        "user_max_bytes", "1MiB", call, slot, said=f"has {MIB} bytes in flight and asks for 8192"
    ),
    Quota("user_requests_per_s", 0.25, lambda http: second(http, call), said="0.25 requests a sec"),
    Quota(DEVICE_S, 1e-9, lambda http: second(http, call), said="of device time today (UTC)"),
    Quota("tensor_user_bytes", "6KiB", lambda http: second(http, store), said="stores 4096 bytes"),
    Quota("tensor_user_count", 1, lambda http: second(http, store), said="stores 1 tensors"),
    Quota(
        *("user_max_uploads", 0, upload, none, 413, "too-large"),
        said="has 0 versions",
        retries=False,
    ),
    Quota(
        *("user_max_uploaded_bytes", 10, upload, none, 413, "too-large"),
        said=f"would be {len(SOURCE)}, at most 10",
        retries=False,
    ),
    Quota("user_max_jobs", 1, lambda http: second(http, submit), said="has 1 jobs that are not"),
    Quota(
        *("user_max_monitors", 0, monitor, none, 413, "too-large"),
        said="has 0 monitors, at most 0",
        retries=False,
    ),
    Quota("user_max_streams", 1, events, stream, said="has 1 streams of events open, at most 1"),
]
# What others refuse: tests/service/artefacts/test_storing.py and tests/service/jobs/test_queue.py.
ELSEWHERE = {"user_max_artefact_bytes", "user_running_jobs"}


def test_every_quota_is_in_the_table() -> None:
    assert {one.name for one in QUOTAS} | ELSEWHERE == set(names(BenchSettings))


@pytest.mark.parametrize("kind", ["user", "role"])
@pytest.mark.parametrize("quota", QUOTAS, ids=lambda quota: str(quota.name))
def test_a_quota_refuses_and_says_its_name(lab: Lab, quota: Quota, kind: str) -> None:
    name, http = lab.user()
    subject = f"user/{name}" if kind == "user" else "role/upload"

    with quota.beside(lab, name):
        lab.set(subject, quota.name, quota.limit)
        refused = quota.request(http)
        assert lab.remove(subject, quota.name) == 204
        allowed = quota.request(http)

    said = problem_of(refused, quota.status, quota.code, refused.json().get("field"))
    assert f"quota {quota.name}" in said
    assert quota.said in said
    assert ("retry-after" in refused.headers) is quota.retries
    assert allowed.status_code < 300, allowed.text


def test_a_user_beats_their_role_and_that_the_setting(lab: Lab) -> None:
    name, http = lab.user()
    before = lab.quotas(name)["user_max_jobs"]
    lab.set("role/upload", "user_max_jobs", 5)
    of_role = lab.quotas(name)["user_max_jobs"]
    lab.set(f"user/{name}", "user_max_jobs", 7)
    of_user = lab.quotas(name)["user_max_jobs"]
    own = {one["name"]: one for one in http.get("/v1/me/quotas").json()["quotas"]}
    other = lab.quotas("root")["user_max_jobs"]
    listed = lab.admin.get("/v1/admin/quotas").json()

    found = [(one["limit"], one["source"]) for one in (before, of_role, of_user, other)]
    assert found == [(1000, "setting"), (5, "role"), (7, "user"), (1000, "setting")]
    assert own["user_max_jobs"] == of_user
    assert [(one["kind"], one["subject"], one["limit"]) for one in listed["quotas"]] == [
        ("role", "upload", 5),
        ("user", name, 7),
    ]
    assert listed["settings"]["user_max_jobs"] == 1000


def test_the_role_is_that_of_the_valid_key_with_the_most_rights(lab: Lab) -> None:
    name, _ = lab.user()
    strong = lab.database.key(name, "admin")
    lab.set("role/admin", "user_max_jobs", 9)
    lab.set("role/upload", "user_max_jobs", 5)
    with_both = lab.quotas(name)["user_max_jobs"]["limit"]

    lab.database.revoke(strong)

    until(lambda: lab.quotas(name)["user_max_jobs"]["limit"] == 5)
    assert with_both == 9


def test_a_role_ends_with_the_key_that_expires(lab: Lab) -> None:
    name, _ = lab.user()
    lab.set("role/admin", "user_max_jobs", 9)
    lab.database.key(name, "admin", 2)

    until(lambda: lab.quotas(name)["user_max_jobs"]["limit"] == 9)
    until(lambda: lab.quotas(name)["user_max_jobs"]["limit"] == 1000)


def test_a_change_applies_to_the_next_request_while_others_run(lab: Lab) -> None:
    name, http = lab.user()
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(stream(lab, name))
        lab.set(f"user/{name}", "user_max_requests", 2)
        below = call(http)
        lab.set(f"user/{name}", "user_max_requests", 4)
        above = call(http)

    assert "has 3 requests in flight, at most 2" in problem_of(below, 429, "busy", None)
    assert above.status_code == 200


def test_a_users_use_stands_beside_each_limit(lab: Lab) -> None:
    name, http = lab.user()
    for one in (call, store, submit, upload):
        assert one(http).status_code < 300

    with slot(lab, name):
        used = {quota: row["used"] for quota, row in lab.quotas(name).items()}

    assert used.pop(DEVICE_S) > 0
    assert used == {
        "user_max_requests": 0,
        "user_max_bytes": MIB,
        "user_requests_per_s": None,
        "tensor_user_bytes": 4096,
        "tensor_user_count": 1,
        "user_max_uploads": 1,
        "user_max_uploaded_bytes": len(SOURCE),
        "user_max_artefact_bytes": 0,
        "user_max_jobs": 1,
        "user_running_jobs": 0,
        "user_max_monitors": 0,
        "user_max_streams": 0,
    }


def test_without_device_time_nothing_computes_and_tensors_can_be_moved(lab: Lab) -> None:
    name, http = lab.user()
    stored = store(http).json()[wire.STORED_KEY]["x"]["id"]
    assert call(http).status_code == 200
    lab.set(f"user/{name}", DEVICE_S, 1e-9)
    step = {"name": "t", "op": "permute", "inputs": {"x": "x"}, "params": {"dims": [0]}}
    program = {"params": json.dumps({"program": {"steps": [step], "outputs": {"y": "t"}}})}
    form, array = {"params.dims": "0"}, npy(np.zeros(4, np.float32))

    refused = [
        call(http),
        http.post(f"{PERMUTE}?dims=0", headers={"x-warpcall-tensors": f"x={stored}"}),
        http.post(
            "/v1/programs",
            content=safetensors.numpy.save({"x": np.zeros(4, np.uint8)}, metadata=program),
            headers=KIB,
        ),
        http.post("/v1/jobs", json={**JOB, "fresh": True}),
        http.post("/v1/groups", json={"gpus": ["H100", "H200"], "job": JOB}),
        http.post("/v2/models/permute/infer", json=oip.body()),
        http.post("/call", params={"op": "permute"}, data=form, files={"x": ("a.npy", array)}),
    ]
    moved = [store(http), http.get(f"/v1/tensors/{stored}")]

    left_s = 86_400 - time.time() % 86_400
    for answer in refused:
        assert f"the quota {DEVICE_S} allows 1e-09" in answer.text
    *programs, page = refused
    assert page.status_code == 429
    for answer in programs:
        assert answer.status_code == 429
        assert abs(int(answer.headers["retry-after"]) - left_s) < 120
    assert [answer.status_code for answer in moved] == [200, 200]


def test_a_call_that_nobody_waits_for_costs_device_time(lab: Lab) -> None:
    name, http = lab.user()
    assert call(http).status_code == 200
    until(lambda: lab.quotas(name)[DEVICE_S]["used"] > 0)
    before = lab.quotas(name)[DEVICE_S]["used"]
    engine = lab.app.engine

    async def leave() -> None:
        """Begin a call and give its answer up once the worker has it."""
        plan = await engine.plan_call("permute", [TensorInfo("x", "U8", (4096,))], {"dims": [0]})
        slot = await engine.acquire(8192, 1.0, name)
        outcome = asyncio.get_running_loop().create_future()
        engine.submit(plan, slot, slot, 4096, time.monotonic() + 30, outcome)
        outcome.cancel()
        slot.release()

    asyncio.run_coroutine_threadsafe(leave(), lab.app.loop).result(30)

    until(lambda: lab.quotas(name)[DEVICE_S]["used"] > before)


@pytest.mark.parametrize(
    ("quota", "limit", "says"),
    [
        ("user_max_jobs", 0, "must be greater than or equal to 1, got 0"),
        ("user_max_jobs", -3, "must be greater than or equal to 1, got -3"),
        ("user_max_jobs", "many", "must be a valid integer"),
        ("user_max_jobs", 2.5, "must be a valid integer"),
        ("user_max_jobs", True, "must be a valid integer"),
        ("user_max_jobs", None, "must be a valid integer"),
        ("user_max_jobs", 10**16, "must be at most 9007199254740992"),
        ("user_max_bytes", "2 parsecs", "could not interpret byte unit"),
        ("user_max_bytes", "-1", "could not parse value"),
        ("user_requests_per_s", 0, "must be greater than 0"),
        ("user_requests_per_s", "nan", "must be a finite number"),
        (DEVICE_S, "inf", "must be a finite number"),
        (DEVICE_S, 1e300, "must be at most"),
    ],
)
def test_a_limit_that_is_none_is_refused_with_what_was_given(
    lab: Lab, quota: str, limit: object, says: str
) -> None:
    name, _ = lab.user("bad")

    answer = lab.put(f"user/{name}", quota, limit)

    said = problem_of(answer, 422, "invalid-input", "limit")
    assert f"limit of {quota}: {says}" in said
    assert f"got {limit!r}"[:20] in said
    assert lab.quotas(name)[quota]["source"] == "setting"


@pytest.mark.parametrize(
    ("path", "status", "code", "field_"),
    [
        ("user/nobody/user_max_jobs", 404, "not-found", "user"),
        ("role/boss/user_max_jobs", 422, "invalid-input", "role"),
        ("team/a/user_max_jobs", 422, "invalid-input", "kind"),
        ("user/root/user_max_cats", 422, "invalid-input", "quota"),
        ("user/root/user_max_shared_bytes", 422, "invalid-input", "quota"),
    ],
)
def test_unknown_users_roles_and_quotas_are_refused(
    lab: Lab, path: str, status: int, code: str, field_: str
) -> None:
    subject, _, quota = path.rpartition("/")

    answers = [lab.put(subject, quota, 5), lab.admin.delete(f"/v1/admin/quotas/{path}")]

    for answer in answers:
        problem_of(answer, status, code, field_)


@pytest.mark.parametrize(
    ("body", "kind", "status", "field_"),
    [
        (b"{}", "application/json", 422, "body"),
        (b'{"limit": 1, "limit": 2}', "application/json", 422, "body"),
        (b'{"limit": 1, "more": 2}', "application/json", 422, "body"),
        (b"[1]", "application/json", 422, "body"),
        (b'{"limit": ' + b"1" * 2000 + b"}", "application/json", 413, "body"),
        (b'{"limit": 1}', "text/plain", 415, "content-type"),
    ],
)
def test_bodies_that_are_no_limit_are_refused(
    lab: Lab, body: bytes, kind: str, status: int, field_: str
) -> None:
    path = "/v1/admin/quotas/user/root/user_max_jobs"

    answer = lab.admin.put(path, content=body, headers={"content-type": kind})

    assert (answer.status_code, answer.json()["field"]) == (status, field_)


def test_only_administrators_read_and_change_quotas(lab: Lab) -> None:
    name, http = lab.user()
    path = f"/v1/admin/quotas/user/{name}/user_max_jobs"

    answers = [
        http.put(path, json={"limit": 10_000}),
        http.delete(path),
        http.get("/v1/admin/quotas"),
        http.get(f"/v1/admin/quotas/user/{name}"),
    ]

    for answer in answers:
        assert "role admin" in problem_of(answer, 403, "forbidden", None)
    assert lab.remove(f"user/{name}", "user_max_jobs") == 404


def test_without_keys_there_are_no_administrators_who_could_change_quotas(app: App) -> None:
    with app.client() as http:
        changed = http.put("/v1/admin/quotas/role/call/user_max_jobs", json={"limit": 3})
        own = http.get("/v1/me/quotas").json()

    assert "knows no administrators" in problem_of(changed, 403, "forbidden", None)
    assert own["user"] == "local"
    assert "user_max_requests" not in {one["name"] for one in own["quotas"]}


def test_the_page_sets_shows_and_removes_a_limit(lab: Lab) -> None:
    name, http = lab.user()
    assert submit(http).status_code == 201
    browser = {"accept": "text/html"}

    set_ = lab.admin.post(
        "/admin/quotas",
        data={"of": f"user {name}", "quota": "user_max_jobs", "limit": "4"},
        headers=browser,
    )
    page = lab.admin.get("/admin", headers=browser).text
    own = http.get("/account", headers=browser).text
    removed = lab.admin.post(f"/admin/quotas/user/{name}/user_max_jobs/remove", headers=browser)
    again = lab.admin.post(f"/admin/quotas/user/{name}/user_max_jobs/remove", headers=browser)

    assert (set_.status_code, set_.headers["location"]) == (303, "../admin#quotas")
    row = re.search(rf"<tr><td>user {name}.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert re.findall(r'<td class="num">(?:<b>)?(\d+)', row[0]) == ["1", "4"]
    assert re.search(r"user_max_jobs</span></td><td class=.num.>1</td>.*?<b>4</b>.*?you<", own)
    assert removed.status_code == again.status_code == 303
    assert lab.quotas(name)["user_max_jobs"]["source"] == "setting"


@pytest.mark.parametrize(
    ("fields", "at", "says"),
    [
        ({"limit": "-1"}, "limit", "must be greater than or equal to 1"),
        ({"quota": "user_max_cats"}, "quota", "quota must be"),
        ({"of": "user nobody"}, "of", "there is no user"),
        ({"of": "role boss"}, "of", "the role must be"),
        ({"of": "root"}, "of", "it must be a user or a role"),
    ],
)
def test_the_form_marks_the_field_at_fault(
    lab: Lab, fields: dict[str, str], at: str, says: str
) -> None:
    data = {"of": "user root", "quota": "user_max_jobs", "limit": "4", **fields}

    answer = lab.admin.post("/admin/quotas", data=data, headers={"accept": "text/html"})

    assert answer.status_code in (404, 422)
    assert re.search(rf'<p class="error" id="{at}-error">[^<]*{says}', answer.text)
    assert lab.quotas("root")["user_max_jobs"]["source"] == "setting"


def device_time(http: httpx.Client) -> dict[str, Any]:
    """What a user may use of devices today, and what they have used."""
    found = http.get("/v1/me/quotas").json()["quotas"]
    return next(one for one in found if one["name"] == DEVICE_S)


def test_quotas_are_those_of_all_servers_of_a_database_and_outlast_them(tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path / "one")})
    keys = {name: database.key(name, role) for name, role in (("root", "admin"), ("ann", "bench"))}  # type: ignore[arg-type]
    settings = {"database_url": f"sqlite:///{tmp_path}/one/warpcall.sqlite3", "arena_bytes": "8MiB"}
    folders = [tmp_path / "one", tmp_path / "two"]

    with ExitStack() as opened:
        apps = [
            opened.enter_context(running_app(runs_jobs=False, data_dir=folder, **settings))
            for folder in folders
        ]
        admin, other = apps[0].client(keys["root"]), apps[1].client(keys["ann"])
        path = "/v1/admin/quotas/user/ann/user_max_bytes"
        assert admin.put(path, json={"limit": "3MiB"}).status_code == 200
        until(lambda: other.get("/v1/me").json()["limits"]["bytes_in_flight"] == 3 * MIB)
        assert call(apps[0].client(keys["ann"])).status_code == 200  # the other learns of its time
        admin.put(f"/v1/admin/quotas/role/bench/{DEVICE_S}", json={"limit": 1e-9})
        until(lambda: device_time(other)["source"] == "role")
        until(lambda: device_time(other)["used"] > 0)  # of what the first server counted
        assert call(other).status_code == 429
    with running_app(runs_jobs=False, data_dir=folders[1], **settings) as app:
        again = app.client(keys["ann"])
        kept = again.get("/v1/me").json()["limits"]["bytes_in_flight"]
        until(lambda: call(again).status_code == 429)

    assert kept == 3 * MIB


def test_many_quotas_cost_a_request_nothing_of_the_database() -> None:
    quotas = Quotas(BenchSettings.load())
    stored = {("user", f"u{i}"): {"user_max_jobs": float(i + 1)} for i in range(1000)}

    quotas.update(stored, {f"u{i}": "call" for i in range(1000)})  # type: ignore[arg-type]

    assert [quotas.limit(user, "user_max_jobs") for user in ("u0", "u999", "x")] == [1, 1000, 1000]
    assert isinstance(quotas.limit("u999", "user_max_jobs"), int)
