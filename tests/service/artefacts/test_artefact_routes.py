"""Artefacts over HTTP and on the job's page: who reads them, ranges, ETags, deletion."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import sqlalchemy as sa

from tests.servers import Server, running_server
from tests.service.artefacts.kept import keeping
from tests.service.auth.browsers import Site
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.job_requests import client
from tests.service.nodes.test_nodes import killed, node, states
from tests.service.requests import metrics, problem_of
from tests.service.stored import finished, number
from tests.waiting import until
from warpcall import Client, NodeGone
from warpcall_bench.artefacts.files import GRACE_S, ArtefactFiles
from warpcall_bench.artefacts.service import NewArtefact
from warpcall_bench.artefacts.tables import ArtefactRow

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 8000  # several pieces
LARGE = bytes(range(256)) * 48_000  # more than the buffers of sockets hold
MARKUP = "<img src=x onerror=alert(1)>"
TRACE = NewArtefact(
    name="trace.json", kind="note", media_type="application/json", position=1, implementation=MARKUP
)


@dataclass(frozen=True)
class Lab:
    """A server, keys of users, and jobs of alice's: all may read `open`, others not `secret`."""

    server: Server
    keys: dict[str, str]
    open: str
    secret: str
    large: str
    folder: Path

    def http(self, user: str) -> httpx.Client:
        return client(self.server, self.keys[user])

    def get(self, name: str = "trace.json", **headers: str) -> httpx.Response:
        with self.http("alice") as http:
            return http.get(f"/v1/jobs/{self.open}/artefacts/{name}", headers=headers)

    def files_open(self) -> int:
        """The artefacts that the server has open."""
        opened = psutil.Process(self.server.process.pid).open_files()
        return sum("/artefacts/" in file.path for file in opened)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("data")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys |= {"caller": database.key("caller"), "root": database.key("root", "admin")}
    store = database.store()
    jobs = [finished(store, "alice", 2, private=private) for private in (False, True, True)]
    here = keeping(database, store)
    large = NewArtefact(name="large.bin", kind="note", media_type="x/y")
    assert here.add(jobs[2], LARGE, large) == ""
    for job in jobs[:2]:
        assert here.add(job, CONTENT, TRACE) == ""
        assert here.add(job, b"hello") == ""
    here.add(jobs[0], bytes(17 << 20), NewArtefact(name="large", kind="note", media_type="x/y"))
    with store.write() as session:  # what no server stores
        of_first = ArtefactRow.job_number == number(store, jobs[0])
        named = sa.update(ArtefactRow).where(of_first, ArtefactRow.name == "notes.txt")
        session.execute(named.values(name=f'{MARKUP}".txt'))
        session.execute(
            sa.update(ArtefactRow).where(ArtefactRow.name == "large").values(error=MARKUP)
        )
    here.artefacts._threads.close()
    store.close()
    with running_server(database.settings) as server:
        yield Lab(server, keys, jobs[0], jobs[1], jobs[2], folder)


def test_a_job_lists_its_files_and_what_could_not_be_stored(lab: Lab) -> None:
    with lab.http("bob") as http:
        found = http.get(f"/v1/jobs/{lab.open}/artefacts").json()["artefacts"]

    by_name = {one["name"]: one for one in found}
    assert by_name.keys() == {f'{MARKUP}".txt', "large", "trace.json"}
    trace = by_name["trace.json"]
    assert (trace["position"], trace["implementation"], trace["kind"]) == (1, MARKUP, "note")
    assert (trace["nbytes"], trace["error"]) == (len(CONTENT), "")
    assert trace["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert (by_name["large"]["nbytes"], by_name["large"]["error"]) == (0, MARKUP)


def test_a_file_is_saved_and_never_shown(lab: Lab) -> None:
    answer = lab.get()

    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["content-disposition"] == 'attachment; filename="trace.json"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert "sandbox" in answer.headers["content-security-policy"]


def test_a_name_with_markup_stays_a_name(lab: Lab) -> None:
    answer = lab.get("%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%22.txt")
    with lab.http("alice") as http:
        page = http.get(f"/jobs/{lab.open}", headers={"accept": "text/html"}).text

    disposition = 'attachment; filename="-img-src-x-onerror-alert-1---.txt"'
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert answer.headers["content-disposition"] == disposition
    assert MARKUP not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 3, "its name, its text, an error"
    assert f"v1/jobs/{lab.open}/artefacts/trace.json" in page


def test_a_share_link_shows_no_files(lab: Lab) -> None:
    with lab.http("alice") as http:
        link = http.post(f"/v1/jobs/{lab.open}/shares", json={}).json()["url"]
    with Site(lab.server, Database("sqlite", {})).browser(accept="text/html") as guest:
        page = guest.get(link)
        data = guest.get(f"/v1/shared/{link.rpartition('/')[2]}/artefacts")

    assert page.status_code == 200
    assert "trace.json" not in page.text
    assert data.status_code in (401, 404)


@pytest.mark.parametrize(
    ("given", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=1000000-", 1_000_000, len(CONTENT)),
        ("bytes=-5", len(CONTENT) - 5, len(CONTENT)),
        ("bytes=-99999999", 0, len(CONTENT)),
        ("bytes=5-99999999", 5, len(CONTENT)),
    ],
)
def test_a_range_of_bytes(lab: Lab, given: str, begin: int, end: int) -> None:
    answer = lab.get(range=given)

    assert (answer.status_code, answer.content) == (206, CONTENT[begin:end])
    assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(CONTENT)}"


def test_head_tells_the_size_and_the_tag_without_the_file(lab: Lab) -> None:
    with lab.http("alice") as http:
        path = f"/v1/jobs/{lab.open}/artefacts/trace.json"
        whole, part = http.head(path), http.head(path, headers={"range": "bytes=10-19"})
        afterwards = http.get(path)  # on the same connection, where a body would be in the way
        absent = http.head(f"{path}-not")
    with lab.http("bob") as http:
        secret = http.head(f"/v1/jobs/{lab.secret}/artefacts/trace.json")

    assert (whole.status_code, whole.content) == (200, b"")
    assert whole.headers["content-length"] == str(len(CONTENT))
    assert whole.headers["etag"] == afterwards.headers["etag"]
    assert whole.headers["accept-ranges"] == "bytes"
    assert (part.status_code, part.headers["content-length"], part.content) == (206, "10", b"")
    assert afterwards.content == CONTENT
    assert [absent.status_code, secret.status_code] == [404, 404]


@pytest.mark.parametrize("given", [f"bytes={len(CONTENT)}-", "bytes=-0", f"bytes={'9' * 18}-"])
def test_a_range_behind_the_end_is_refused(lab: Lab, given: str) -> None:
    answer = lab.get(range=given)

    problem_of(answer, 416, "range-not-satisfiable", "range")
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


@pytest.mark.parametrize(
    "given", ["bytes=0-1,3-4", "bytes=5-1", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=1", ""]
)
def test_a_range_that_is_not_understood_gets_the_whole_file(lab: Lab, given: str) -> None:
    answer = lab.get(range=given)

    assert (answer.status_code, len(answer.content)) == (200, len(CONTENT))


def test_a_client_that_has_the_file_gets_none(lab: Lab) -> None:
    tag = lab.get().headers["etag"]

    same = [lab.get(**{"if-none-match": given}) for given in (tag, f'"x", W/{tag}', "*")]
    other = lab.get(**{"if-none-match": '"x"'})
    in_range = lab.get(**{"if-range": tag, "range": "bytes=0-3"})
    changed = lab.get(**{"if-range": '"x"', "range": "bytes=0-3"})

    assert [(one.status_code, one.content, one.headers["etag"]) for one in same] == [
        (304, b"", tag)
    ] * 3
    assert [one.status_code for one in (other, in_range, changed)] == [200, 206, 200]


def test_a_file_that_could_not_be_stored_is_not_found_with_the_reason(lab: Lab) -> None:
    said = problem_of(lab.get("large"), 404, "not-found", "name")
    absent = problem_of(lab.get("nothing"), 404, "not-found", "name")

    assert said == f"the artefact large has no file: {MARKUP}"
    assert absent == f"the job {lab.open} has no artefact 'nothing', or it has expired"


@pytest.mark.parametrize("user", ["bob", "caller"])
def test_files_of_a_private_job_are_not_found_by_others(lab: Lab, user: str) -> None:
    paths = [f"/v1/jobs/{lab.secret}/artefacts{rest}" for rest in ("", "/trace.json", "/nothing")]
    with lab.http(user) as http:
        for path in paths:
            problem_of(http.get(path), 404, "not-found", "id")
    for reader in ("alice", "root"):
        with lab.http(reader) as http:
            assert [http.get(path).status_code for path in paths] == [200, 200, 404]


def test_only_the_owner_deletes_a_file(lab: Lab) -> None:
    path = f"/v1/jobs/{lab.secret}/artefacts/notes.txt"
    shown = f"/v1/jobs/{lab.open}/artefacts/trace.json"
    before = len(list((lab.folder / "artefacts").iterdir()))
    with lab.http("bob") as http:
        refused = [http.delete(path), http.delete(shown)]
    with lab.http("alice") as http:
        deleted = [http.delete(path).status_code for _ in range(2)]

    problem_of(refused[0], 404, "not-found", "id")
    problem_of(refused[1], 403, "forbidden", "id")
    assert deleted == [204, 404]
    assert len(list((lab.folder / "artefacts").iterdir())) == before - 1


def test_metrics_tell_the_bytes(lab: Lab) -> None:
    with lab.http("root") as http:
        found = metrics(http)

    assert found["warpcall_artefact_bytes"] >= 2 * len(CONTENT)
    assert found["warpcall_artefact_failures_total"] == 0


@contextlib.contextmanager
def halted(lab: Lab) -> Iterator[socket.socket]:
    """A download whose client has stopped to read. It has no room for the file."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", lab.server.port))
        path = f"/v1/jobs/{lab.large}/artefacts/large.bin"
        key = lab.keys["alice"]
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(12) == b"HTTP/1.1 200"
        until(lambda: lab.files_open() == 1)
        yield sock


def test_a_download_that_ends_early_leaves_no_open_file(lab: Lab) -> None:
    with halted(lab):
        pass

    until(lambda: lab.files_open() == 0)


def test_a_file_that_is_deleted_while_it_is_sent_arrives_whole(lab: Lab) -> None:
    with halted(lab) as sock, lab.http("alice") as http:
        assert http.delete(f"/v1/jobs/{lab.large}/artefacts/large.bin").status_code == 204
        received = b""
        while len(received) < len(LARGE):
            received += sock.recv(1 << 20)
        again = http.get(f"/v1/jobs/{lab.large}/artefacts/large.bin")

    assert received.endswith(LARGE)
    assert again.status_code == 404


def test_a_file_that_is_damaged_is_not_sent(lab: Lab) -> None:
    with lab.http("alice") as http:
        made = http.get(f"/v1/jobs/{lab.secret}/artefacts").json()["artefacts"]
        assert [one["name"] for one in made if one["sha256"]] == ["trace.json"]
    for path in (lab.folder / "artefacts").iterdir():
        if path.read_bytes() == CONTENT:
            path.write_bytes(b"other")

    answer = lab.get()

    problem_of(answer, 404, "not-found", "name")


def test_a_server_deletes_what_a_killed_one_has_left(sqlite: Database) -> None:
    folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
    files = ArtefactFiles(folder)
    orphan = folder / "artefacts" / files.write(b"orphan")
    os.utime(orphan, (orphan.stat().st_mtime - GRACE_S - 1,) * 2)

    with running_server(sqlite.settings):
        until(lambda: not orphan.exists())


def test_other_servers_lead_to_the_file_until_its_server_is_gone(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path)
    store = database.store()
    store.migrate()
    job = finished(store, "local", 1)
    here = keeping(
        Database("postgresql", {**database.settings, "WARPCALL_DATA_DIR": str(tmp_path / "a")}),
        store,
    )
    assert here.add(job, CONTENT, TRACE) == ""
    here.artefacts._threads.close()
    store.close()
    path = f"/v1/jobs/{job}/artefacts/trace.json"
    with node(database, tmp_path / "b") as b, httpx.Client(base_url=b.url, timeout=30) as at_b:
        with killed(), node(database, tmp_path / "a") as a:
            # Up to a second before `b` knows it:
            until(lambda: states(a) == {a.url: "alive", b.url: "alive"})
            moved = at_b.get(path)
            with Client(b.url) as gpu:
                (found,) = gpu.jobs.get(job).artefacts()
                content = found.read()
            os.kill(a.process.pid, signal.SIGKILL)
        until(lambda: states(b)[a.url] == "gone")
        gone = at_b.get(path)
        with Client(b.url) as gpu, pytest.raises(NodeGone):
            gpu.jobs.get(job).artefacts()[0].read()

    said = problem_of(moved, 307, "on-other-node", "name")
    assert moved.headers["location"] == f"{a.url}{path}"
    assert a.url in said
    assert content == CONTENT
    assert "which is gone since" in problem_of(gone, 410, "node-gone", "name")
