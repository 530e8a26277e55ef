"""Scratch runs without their processes: what is refused, who sees them, and that nothing judges them."""

from __future__ import annotations

import base64
import hashlib
import json
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
from tests.service.databases import Database
from tests.service.requests import problem_of
from tests.service.runs import sandboxes
from tests.service.stored import finished, number
from warpcall.errors import Forbidden, InvalidInput, TooLarge
from warpcall_bench.jobs import lifecycle, queue, scratch
from warpcall_bench.jobs.models import ScratchRequest
from warpcall_bench.jobs.tables import Job, JobEvent
from warpcall_bench.runs.events import FileFetched, OutputWritten
from warpcall_bench.runs.runner import Outcome
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.uploads import files
from warpcall_bench.uploads.tables import JobFile, StoredFile
from warpcall_service.store.database import Store

RUN = {"command": ["python", "check.py"]}
SCRIPT = "<script>alert(1)</script>"
CONTENT = b"print(1)\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
# What may be done with a scratch run. Every other operation on a job, and every other page, refuses it.
ALLOWED = {
    ("GET", "/v1/jobs/{id}"),
    ("PATCH", "/v1/jobs/{id}"),
    ("POST", "/v1/jobs/{id}/cancel"),
    ("GET", "/v1/jobs/{id}/events"),
    ("GET", "/v1/jobs/{id}/artefacts"),
    ("GET", "/v1/jobs/{id}/artefacts/{name}"),
    ("HEAD", "/v1/jobs/{id}/artefacts/{name}"),
    ("DELETE", "/v1/jobs/{id}/artefacts/{name}"),
    ("GET", "/jobs/{id}"),
    ("POST", "/jobs/{id}/cancel"),
    ("POST", "/jobs/{id}/private"),
}
# Operations that name a job elsewhere than in their path.
NAMED = (
    ("GET", "/compare?a={id}"),
    ("GET", "/compare?a={id}&b={other}"),
    ("GET", "/compare?job={id}&job={other}"),
    ("GET", "/new?like={id}"),
    ("GET", "/monitors/new?like={id}"),
    ("GET", "/v1/jobs/{other}/compare/{id}"),
    ("GET", "/v1/evaluations/{id}.0"),
)


@dataclass(frozen=True)
class Lab:
    """A server with a scratch run of ann's that has ended, and a benchmark of hers."""

    app: App
    keys: dict[str, str]
    run: str
    benchmark: str

    def http(self, user: str) -> httpx.Client:
        return self.app.client(self.keys[user])


def submitted(store: Store, user: str = "ann", key: str | None = None, **fields: Any) -> Job:
    with store.write() as session:
        request = ScratchRequest.model_validate({**RUN, **fields})
        caller = job_rows.caller(user, "scratch")
        job, _ = scratch.submit(session, caller, request, key, job_rows.MANY, 1 << 20)
        session.flush()
        session.expunge(job)
        return job


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {user: database.key(user, "scratch") for user in ("ann", "bob")}
    keys |= {"uploader": database.key("uploader", "upload"), "root": database.key("root", "admin")}
    store = database.store()
    benchmark = finished(store, "ann", 1)
    run = submitted(store, command=["echo", SCRIPT], files={}, fetch=["d"])
    written = (
        OutputWritten(0, f"{SCRIPT}\n\tb\x1b[31m".encode()),
        OutputWritten(1000, b"\xff end"),
    )
    with store.write() as session:
        job = session.get_one(Job, run.number)
        output = scratch.OutputEvents()
        for one in written:
            output.store(session, job, one)
        scratch.store_file(session, job, FileFetched("d/x", "d-x", b"", ""), "")
        scratch.store_file(session, job, FileFetched("d/y", "d-y", b"", "a link"), "a link")
        job.exit_status = 3
        lifecycle.end_run(session, job, Outcome("error", "it failed", (), 1.0, 2.0), counts=True)
    won = submitted(store, private=False, name="a run that all may read")
    with store.write() as session:
        job = session.get_one(Job, won.number)
        lifecycle.end_run(session, job, Outcome("ok", "", (), 1.0, 2.0), counts=True)
        assert job.state == "succeeded"
    store.close()
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    limits = {"uploads": "sandboxed", "scratch_max_s": 90, "upload_max_files": 3}
    with pytest.MonkeyPatch.context() as patch:

        async def probe(self: Sandbox) -> str:  # no test here starts a process in it
            self.trouble = ""
            return ""

        patch.setattr(Sandbox, "probe", probe)
        with running_app(runs_jobs=False, data_dir=folder, arena_bytes="16MiB", **limits) as app:
            yield Lab(app, keys, run.id, benchmark)


@pytest.fixture
def store(sqlite: Database) -> Iterator[Store]:
    found = sqlite.store()
    found.migrate()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"command": []}, "command", "at least 1 item"),
        ({"command": [""]}, "body", "must begin with a program"),
        ({"command": ["a\0b"]}, "command.0", ""),
        ({"command": ["x"] * 257}, "command", "at most 256 items"),
        ({"command": ["x" * 4097]}, "command.0", "at most 4096"),
        ({"command": "echo"}, "command", "valid array"),
        ({"limit_s": 0}, "limit_s", "greater than 0"),
        ({"limit_s": 91}, "limit_s", "at most 90 s here, got 91"),
        ({"limit_s": 1e9}, "limit_s", "less than or equal to 86400"),
        ({"files": {"../x": SHA256}}, "files", "'../x' cannot be the path"),
        ({"files": {"/x": SHA256}}, "files", "'/x' cannot be the path"),
        ({"files": {".x": SHA256}}, "files", "'.x' cannot be the path"),
        ({"files": {"x": "12"}}, "files", "must be the SHA-256"),
        ({"files": {"x": SHA256}}, "files", "has not been sent"),
        ({"files": {"x": SHA256, "X": SHA256}}, "files", "are the same path"),
        ({"files": {"x": SHA256, "x/y": SHA256}}, "files", "is a file, and the folder of"),
        ({"fetch": ["../x"]}, "fetch", "'../x' cannot be the path"),
        ({"fetch": ["/etc/passwd"]}, "fetch", "'/etc/passwd' cannot be the path"),
        ({"fetch": ["x"] * 33}, "fetch", "at most 32 items"),
        ({"name": "x" * 101}, "name", "at most 100 characters"),
        ({"gpu": "H200"}, "gpu", "no server here has a device of the model"),
        ({"priority": "high"}, "priority", "Extra inputs are not permitted"),
    ],
)
def test_a_run_that_cannot_be_made_is_refused(
    change: dict[str, Any], field: str, text: str, lab: Lab
) -> None:
    with lab.http("ann") as http:
        answer = http.post("/v1/scratch", json={**RUN, **change})

    assert text in problem_of(answer, 422, "invalid-input", field)


def test_a_run_has_bounded_files(lab: Lab) -> None:
    with lab.http("ann") as http:
        many = http.post("/v1/scratch", json={**RUN, "files": dict.fromkeys("abcd", SHA256)})

    problem_of(many, 413, "too-large", "files")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"uploads": "off"}, "this server allows no scratch runs"),
        ({"uploads": "sandboxed"}, "this server allows no scratch runs"),
        ({"uploads": "trusted", "scratch_max_s": 60}, "because they need the sandbox"),
        ({"uploads": "off", "scratch_max_s": 60}, "because they need the sandbox"),
    ],
)
def test_a_server_without_the_setting_or_the_sandbox_refuses_all(
    settings: dict[str, Any], text: str, tmp_path: Path
) -> None:
    sandbox = sandboxes.sandbox(tmp_path / "data", **settings)
    sandbox.trouble = ""

    with pytest.raises(Forbidden, match=text):
        sandbox.require_scratch()


def test_a_sandbox_that_does_not_start_refuses_all(tmp_path: Path) -> None:
    sandbox = sandboxes.sandbox(tmp_path / "data", scratch_max_s=60)
    sandbox.trouble = "bwrap is not installed"

    with pytest.raises(Forbidden, match="its sandbox cannot start: bwrap is not installed"):
        sandbox.require_scratch()


def test_the_role_is_needed(lab: Lab) -> None:
    with lab.http("uploader") as http:
        answer = http.post("/v1/scratch", json=RUN)

    problem_of(answer, 403, "forbidden", None)


def test_a_submission_that_is_repeated_is_the_same_run(lab: Lab) -> None:
    key = {"idempotency-key": "once"}
    with lab.http("ann") as http:
        assert http.put(f"/v1/files/{SHA256}", content=CONTENT).status_code == 204
        body = {**RUN, "files": {"check.py": SHA256}, "limit_s": 5}
        first = http.post("/v1/scratch", json=body, headers=key)
        again = http.post("/v1/scratch", json=body, headers=key)
        other = http.post("/v1/scratch", json={**body, "limit_s": 6}, headers=key)
        queue_ = http.get("/v1/jobs/queue").json()["entries"]
        cancelled = http.post(f"/v1/jobs/{first.json()['id']}/cancel").json()

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert (first.json()["kind"], first.json()["private"]) == ("scratch", True)
    problem_of(other, 422, "invalid-input", "idempotency-key")
    assert [(one["kind"], one["name"]) for one in queue_] == [("scratch", "python check.py")]
    assert (cancelled["state"], cancelled["exit_status"]) == ("cancelled", None)


def asked(http: httpx.Client, method: str, path: str, lab: Lab) -> httpx.Response:
    path = path.replace("{id}", lab.run).replace("{other}", lab.benchmark)
    path = path.replace("{position}", "0").replace("{name}", "d-x")
    if path.startswith("/v1"):
        body = {"PATCH": {"private": True}, "POST": {}}.get(method)
        return http.request(method, path, json=body)
    data = {"token": "t"} if method == "POST" else None
    return http.request(method, path, data=data, headers={"accept": "text/html"})


def test_no_operation_but_a_few_takes_a_scratch_run(lab: Lab, tmp_path: Path) -> None:
    found = {(method, path) for method, path in app_routes(tmp_path) if "/jobs/{id}" in path}
    assert found > ALLOWED - {("HEAD", "/v1/jobs/{id}/artefacts/{name}")}
    with lab.http("ann") as http:
        for method, path in [*sorted(found - ALLOWED), *NAMED]:
            answer = asked(http, method, path, lab)

            assert answer.status_code == 404, (method, path, answer.text)
            assert "scratch run" in answer.text or "evaluation" in path, (method, path)


def test_a_run_of_another_user_looks_like_none(lab: Lab, tmp_path: Path) -> None:
    found = {(method, path) for method, path in app_routes(tmp_path) if "/jobs/{id}" in path}
    with lab.http("bob") as http:
        for method, path in sorted(found):
            answer = asked(http, method, path, lab)
            assert answer.status_code == 404, (method, path)
            assert "scratch" not in answer.text, (method, path)
        listed = http.get("/v1/jobs?user=all&kind=scratch").json()["jobs"]
    with lab.http("root") as http:
        assert http.get(f"/v1/jobs/{lab.run}").json()["exit_status"] == 3

    assert [one["name"] for one in listed] == ["a run that all may read"]


def test_lists_have_a_run_only_where_they_say_what_it_is(lab: Lab) -> None:
    with lab.http("ann") as http:
        jobs = [one["id"] for one in http.get("/v1/jobs").json()["jobs"]]
        runs = {one["id"]: one for one in http.get("/v1/jobs?kind=scratch").json()["jobs"]}
        page = http.get("/jobs").text
        others = {
            path: http.get(path, headers={"accept": "text/html"}).text
            for path in (
                "/",
                "/history",
                "/board",
                "/compare",
                "/kernels",
                "/monitors/new",
                "/shares",
            )
        }
        board = http.get("/v1/board?op=scratch")
        history = http.get("/v1/jobs/history?op=scratch&implementation=torch&case=scratch").json()

    assert jobs == [lab.benchmark]
    assert runs[lab.run]["kind"] == "scratch"
    assert (runs[lab.run]["op"], runs[lab.run]["implementations"]) == ("scratch", [])
    assert f'/jobs/{lab.run}"' in page
    assert "scratch run, not judged" in page
    assert f'name="job" value="{lab.run}"' not in page  # it cannot be ticked to be compared
    assert f'name="job" value="{lab.benchmark}"' in page
    for path, text in others.items():
        assert lab.run not in text, path
        assert "a run that all may read" not in text, path
    assert "scratch" not in others["/board"]
    assert lab.run not in board.text
    assert history["points"] == []


def test_the_page_shows_the_command_its_output_and_files(lab: Lab) -> None:
    with lab.http("ann") as http:
        answer = http.get(f"/jobs/{lab.run}", headers={"accept": "text/html"})

    assert answer.status_code == 200
    text = answer.text
    assert "Scratch run, not judged" in text
    assert "Exit status 3." in text
    assert SCRIPT not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n\tb\ufffd[31m\n[" in text
    assert "bytes are not shown]\n\ufffd end</pre>" in text
    assert f'href="../v1/jobs/{lab.run}/artefacts/d-x" download>d/x</a>' in text
    assert "d/y" in text
    assert "Measure again" not in text


def test_a_run_can_be_shown_to_all_users_but_has_no_share_link(lab: Lab) -> None:
    with lab.http("ann") as http, lab.http("bob") as other:
        assert http.patch(f"/v1/jobs/{lab.run}", json={"private": False}).status_code == 200
        seen = other.get(f"/v1/jobs/{lab.run}").status_code
        refused = other.post(f"/v1/jobs/{lab.run}/cancel").status_code
        shared = http.post(f"/v1/jobs/{lab.run}/shares", json={}).status_code
        assert http.patch(f"/v1/jobs/{lab.run}", json={"private": True}).status_code == 200

    assert (seen, refused, shared) == (200, 403, 404)


def kept(store: Store, job: Job) -> list[tuple[int, bytes]]:
    with store.read() as session:
        rows = session.scalars(
            sa.select(JobEvent.data)
            .where(JobEvent.job_number == job.number, JobEvent.kind == "output")
            .order_by(JobEvent.sequence)
        ).all()
    found = [json.loads(row) for row in rows]
    return [(one["at"], base64.b64decode(one["data"])) for one in found]


@pytest.mark.parametrize("nbytes", [64 << 10, 1], ids=["large pieces", "single bytes"])
def test_the_beginning_and_the_end_of_the_output_are_kept(nbytes: int, store: Store) -> None:
    job, output = submitted(store), scratch.OutputEvents()
    most = scratch.MOST_KEPT_BYTES // max(nbytes, scratch.LEAST_BYTES)
    number_of = 2 * most + 5
    with store.write() as session:
        row = session.get_one(Job, job.number)
        for at in range(number_of):
            output.store(session, row, OutputWritten(at * nbytes, bytes([at % 256]) * nbytes))

    found = [at // nbytes for at, _ in kept(store, job)]
    assert found == [*range(most), *range(number_of - most, number_of)]
    with store.read() as session:
        last = scratch.last_output(session, session.get_one(Job, job.number), 3 * nbytes)
    assert [one.at // nbytes for one in last] == [*range(number_of - 3, number_of)]


def test_files_are_kept_until_the_run_has_ended(store: Store) -> None:
    with store.write() as session:
        files.store(session, "ann", SHA256, CONTENT)
    job = submitted(store, files={"a.py": SHA256, "b/c.py": SHA256})
    with store.write() as session:
        session.execute(sa.update(StoredFile).values(used_ms=0))
    with store.write() as session:
        files.delete_unneeded(session)
        needed = files.of_job(session, job.number)
    with store.write() as session:
        lifecycle.end_job(session, session.get_one(Job, job.number), "cancelled", "cancelled", "")
    with store.write() as session:
        files.delete_unneeded(session)
        left = session.scalars(sa.select(sa.func.count()).select_from(StoredFile)).one()
        rows = session.scalars(sa.select(sa.func.count()).select_from(JobFile)).one()

    assert needed == ({"a.py": SHA256, "b/c.py": SHA256}, {SHA256: CONTENT})
    assert (left, rows) == (0, 0)


def test_files_of_others_cannot_be_used(store: Store) -> None:
    with store.write() as session:
        files.store(session, "bob", SHA256, CONTENT)

    with pytest.raises(InvalidInput, match=r"a.py with the SHA-256 .* has not been sent"):
        submitted(store, files={"a.py": SHA256})


def test_files_have_at_most_so_many_bytes_together(store: Store) -> None:
    large = b"x" * ((1 << 19) + 1)
    sha256 = hashlib.sha256(large).hexdigest()
    with store.write() as session:
        files.store(session, "ann", sha256, large)

    with pytest.raises(TooLarge, match="at most 1048576 bytes together, got 1048578"):
        submitted(store, files={"a": sha256, "b": sha256})


def test_a_run_that_is_interrupted_is_not_started_again(store: Store) -> None:
    job = submitted(store)
    claimed = job_rows.claim(store)
    assert claimed is not None
    assert claimed.number == job.number
    with store.write() as session:
        lifecycle.requeue_own(session, job_rows.RUNNER)

    with store.read() as session:
        row = session.get_one(Job, job.number)
        assert (row.state, row.exit_class) == ("interrupted", "interrupted")
        assert row.detail == f"{lifecycle.LOST}; a scratch run is not started again"


def test_a_run_waits_its_turn_among_the_jobs_of_all(store: Store) -> None:
    for user in ("ann", "ann", "bob"):
        submitted(store, user)
    job_rows.submit(store, "cid")
    with store.read() as session:
        places = queue.places(session, job_rows.DEVICES)
        users = {row.number: row.user_name for row in session.scalars(sa.select(Job))}

    order = [users[one] for one in sorted(places, key=lambda one: places[one].position)]
    assert sorted(order[:3]) == ["ann", "bob", "cid"]
    assert order[3] == "ann"


def test_a_benchmark_never_answers_a_run_nor_a_run_a_benchmark(store: Store) -> None:
    first, second = submitted(store), submitted(store)

    assert first.question_sha256 != second.question_sha256
    assert number(store, first.id) != number(store, second.id)
