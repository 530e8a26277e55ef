"""Large answers about jobs: streamed in little memory, one of a user at a time, and never cut
unseen.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import JOB, client
from tests.service.requests import log_of, problem_of, well
from tests.service.stored import (
    IMPLEMENTATIONS,
    add_events,
    damage,
    finished,
    implementation,
    number,
    result,
)
from warpcall_bench.jobs import events, lifecycle, queue
from warpcall_bench.jobs.database import JobDatabase, UserReads
from warpcall_bench.jobs.tables import Job
from warpcall_kernels import measuring
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

WAIT_S = 60.0
EVENTS = 1300  # more than two batches
STREAMS = 3
LARGE, ROUNDS = 150, 500  # an export with samples has 11 MB, more than sockets hold


@dataclass(frozen=True)
class Archive:
    """A server with finished jobs of alice's.

    Attributes:
        large: ids of two jobs with much larger results than a socket holds.
        damaged: a job of which one result amid the others cannot be read.
        eventful: a job with EVENTS events of progress.
    """

    server: Server
    keys: dict[str, str]
    store: Store
    large: tuple[str, str]
    damaged: str
    eventful: str

    def http(self, user: str) -> httpx.Client:
        return client(self.server, self.keys[user])

    def unread(self, user: str, path: str) -> socket.socket:
        """A socket on which an answer has begun that nobody reads on."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else it may hold all of it
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", self.server.port))
        head = f"GET /v1/jobs/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.keys[user]}"
        sock.sendall(f"{head}\r\n\r\n".encode())
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        return sock

    def memory(self) -> int:
        """The most bytes that the process that speaks HTTP had resident so far."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys["root"] = database.key("root", "admin")
    store = database.store()
    large = (finished(store, "alice", LARGE, ROUNDS), finished(store, "alice", LARGE, ROUNDS, 7))
    damaged = finished(store, "alice", LARGE // 2, ROUNDS)
    eventful = finished(store, "alice", 1)
    damage(store, damaged, LARGE // 4)
    add_events(store, eventful, EVENTS)
    settings = {
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_QUEUE_TIMEOUT_S": "2",
        "WARPCALL_USER_MAX_STREAMS": str(STREAMS),
        "WARPCALL_JOB_LEASE_S": "3600",  # a job that is said to run elsewhere is left there
    }
    with running_server({**database.settings, **settings}) as server:
        yield Archive(server, keys, store, large, damaged, eventful)
    store.close()


def eventually(attempt: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """An answer of this status; until then the server may be busy."""
    deadline = time.monotonic() + WAIT_S
    while (answer := attempt()).status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer.status_code == status, answer.text
    return answer


def test_an_export_and_a_comparison_of_large_jobs_take_little_memory(archive: Archive) -> None:
    first, second = archive.large
    with archive.http("alice") as http:
        assert well(http).status_code == 200
        before = archive.memory()
        with http.stream("GET", f"/v1/jobs/{first}/results?samples=true") as answer:
            nbytes = sum(map(len, answer.iter_raw()))
        rows = http.get(f"/v1/jobs/{first}/compare/{second}").json()["rows"]

    assert nbytes > 10_000_000
    assert len(rows) == LARGE * len(IMPLEMENTATIONS)
    assert archive.memory() - before < 40_000_000  # a whole one as objects has some 60 MB


def test_a_user_has_one_heavy_read_at_a_time_and_others_are_not_kept_waiting(
    archive: Archive,
) -> None:
    first, second = archive.large
    with (
        archive.unread("root", f"{first}/results?samples=true") as unread,
        archive.http("root") as root,
        archive.http("alice") as alice,
    ):
        for path in (f"{second}/results", f"{first}/compare/{second}"):
            refused = root.get(f"/v1/jobs/{path}")
            assert "one user may have one at a time" in problem_of(refused, 429, "busy", None)
            assert refused.headers["retry-after"]
        listed = root.get("/v1/jobs")
        theirs = alice.get(f"/v1/jobs/{first}/results")
        unread.close()
        again = eventually(lambda: root.get(f"/v1/jobs/{second}/results"), 200)

    assert listed.status_code == theirs.status_code == 200
    assert len(again.json()["cases"]) == LARGE


def test_of_a_users_heavy_reads_only_a_few_may_wait(archive: Archive) -> None:
    first, _ = archive.large
    answers: list[httpx.Response] = []

    def read() -> None:
        with archive.http("root") as http:
            answers.append(http.get(f"/v1/jobs/{first}/results?format=csv"))

    with archive.unread("root", f"{first}/results?samples=true"):
        threads = [threading.Thread(target=read) for _ in range(12)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT_S
        while not answers and time.monotonic() < deadline:
            time.sleep(0.01)
    for thread in threads:
        thread.join()

    refused = [problem_of(a, 429, "busy", None) for a in answers if a.status_code == 429]
    assert any("not finished, at most 9 are allowed" in detail for detail in refused)
    assert all(answer.status_code in (200, 429) for answer in answers)


@pytest.mark.parametrize("leave", ["amid the answer", "amid a comparison"])
def test_a_read_whose_client_leaves_is_ended(leave: str, archive: Archive) -> None:
    first, second = archive.large
    path = {
        "amid the answer": f"{first}/results?samples=true",
        "amid a comparison": f"{first}/compare/{second}",
    }[leave]

    with archive.unread("root", path):
        pass

    with archive.http("root") as http:
        found = eventually(lambda: http.get(f"/v1/jobs/{second}/results"), 200)
    assert len(found.json()["cases"]) == LARGE


@pytest.mark.parametrize("path", ["results?samples=true", "compare/{other}"])
def test_an_answer_that_fails_amid_its_parts_is_cut_off(path: str, archive: Archive) -> None:
    before = log_of(archive.server)
    with archive.http("alice") as http:
        url = f"/v1/jobs/{archive.damaged}/{path.replace('{other}', archive.large[0])}"
        with http.stream("GET", url) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
        assert well(http).status_code == 200
    more = log_of(archive.server)[len(before) :]
    assert "response already started" not in more
    assert "internal" in more if "results" in path else "kernel-failed" in more


def test_a_comparison_has_what_both_jobs_measured_and_names_the_rest(
    archive: Archive,
) -> None:
    drawn = np.random.default_rng(1).lognormal(3, 0.1, (4, 40))
    a_cases = [
        {"same": drawn[0], "masked": drawn[1], "failed": drawn[2], "ours": drawn[3]},
        {"same": drawn[1]},
    ]
    b_cases = [{"same": 1.1 * drawn[1], "masked": drawn[1], "failed": drawn[2], "none": drawn[3]}]
    job_ids = []
    for stored_cases in (a_cases, b_cases):
        job_id = finished(archive.store, "alice", 0, of=3)
        with archive.store.write() as session:
            job = session.get_one(Job, number(archive.store, job_id))
            for position, case in enumerate(stored_cases):
                found = [implementation(name, list(samples)) for name, samples in case.items()]
                if stored_cases is b_cases:
                    found[2]["status"] = "wrong_result"
                    found[3]["samples_us"] = [None] * 40
                    found[1]["samples_us"][7] = None
                change = {"implementations": found, "masked": [{"round": 3, "reason": "hot"}]}
                lifecycle.save_case(session, job, position, result(40, 0, **change))
            if stored_cases is b_cases:
                lifecycle.save_case(session, job, 2, result(40, 0))
        job_ids.append(job_id)

    with archive.http("alice") as http:
        answer = http.get(f"/v1/jobs/{job_ids[0]}/compare/{job_ids[1]}")

    a, b = drawn[0].copy(), 1.1 * drawn[1]
    a[3] = b[3] = math.nan
    expected = measuring.compare_runs(a, b)
    comparison = answer.json()
    assert [(row["case"], row["implementation"]) for row in comparison["rows"]] == [
        ("case 0", "same"),
        ("case 0", "masked"),
    ]
    assert comparison["rows"][0] == {
        "case": "case 0",
        "implementation": "same",
        "a_us": measuring.median_of_run(a),
        "b_us": measuring.median_of_run(b),
        "ratio": expected.ratio,
        "ratio_low": expected.low,
        "ratio_high": expected.high,
        "verdict": "undecided",  # there is no copy
        "relative_to_copy": False,
        "margin": None,
        "repeats": 0,
        "why": "",
        "verified": False,
    }
    assert comparison["only_a"] == ["case 0 by failed", "case 0 by ours", "case 1 by same"]
    assert comparison["only_b"] == [f"case 2 by {name}" for name in IMPLEMENTATIONS]
    assert list(comparison) == [
        *("a", "b", "same_environment", "differences", "rows", "only_a", "only_b")
    ]


def test_many_events_come_once_each_in_order_and_as_they_were(archive: Archive) -> None:
    with archive.http("alice") as http:
        text = http.get(f"/v1/jobs/{archive.eventful}/events").text

    *blocks, rest = text.split("\n\n")
    lines = [block.split("\n") for block in blocks]
    sent = [json.loads(data.removeprefix("data: ")) for _, _, data in lines]
    assert rest == ""
    assert [line[:2] for line in lines] == [
        [f"id: {event['sequence']}", f"event: {event['kind']}"] for event in sent
    ]
    assert [event["sequence"] for event in sent] == list(range(1, len(sent) + 1))
    progress = [event for event in sent if event["kind"] == "progress"]
    assert [event["data"]["position"] for event in progress] == list(range(EVENTS))
    assert progress[0]["data"]["note"] == 'a "quoted" é\n'
    assert progress[0]["at"] == "2023-11-14T22:13:20.007Z"


def test_a_user_has_a_few_streams_of_events_open_and_gets_their_places_back(
    archive: Archive,
) -> None:
    waiting = finished(archive.store, "root", 0, of=1)
    with archive.store.write() as session:
        change = {"user_name": "bob", "state": "running", "runner": "elsewhere"}
        session.execute(sa.update(Job).where(Job.id == waiting).values(change))
    streams = [archive.unread("root", f"{waiting}/events") for _ in range(STREAMS)]
    with archive.http("root") as root, archive.http("bob") as bob:
        refused = root.get(f"/v1/jobs/{waiting}/events")
        with bob.stream("GET", f"/v1/jobs/{waiting}/events") as theirs:
            assert theirs.status_code == 200
        streams.pop().close()

        def watch() -> httpx.Response:
            with root.stream("GET", f"/v1/jobs/{waiting}/events") as answer:
                if answer.status_code != 200:
                    answer.read()
                return answer

        assert f"root has {STREAMS} streams" in problem_of(refused, 429, "busy", None)
        assert refused.headers["retry-after"]
        eventually(watch, 200)
    for stream in streams:
        stream.close()


def test_reads_of_users_hold_up_neither_the_scheduler_nor_submissions(store: Store) -> None:
    release = threading.Event()

    def slow(session: Session) -> None:
        assert release.wait(WAIT_S)

    async def work() -> None:
        database = JobDatabase(store)
        reads = [asyncio.create_task(database.lookups.read(user, slow)) for user in "abcdefgh"]
        reads += [asyncio.create_task(database.exports.read(user, slow)) for user in "abcdefgh"]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(WAIT_S / 2):
            assert not await database.write(queue.heartbeats)
            assert not await database.write(queue.write_heartbeats, {})
        release.set()
        await asyncio.gather(*reads)
        database.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["lookups", "exports"])
def test_a_user_who_reads_much_does_not_keep_another_one_waiting(kind: str, store: Store) -> None:
    served: list[str] = []

    def note(session: Session, user: str) -> None:
        served.append(user)
        time.sleep(0.01)

    async def work() -> None:
        database = JobDatabase(store)
        reads: UserReads = getattr(database, kind)
        greedy = [asyncio.create_task(reads.read("greedy", note, "greedy")) for _ in range(60)]
        await asyncio.sleep(0)
        await reads.read("modest", note, "modest")
        await asyncio.gather(*greedy)
        database.close()

    asyncio.run(work())

    assert served.index("modest") < 12  # behind those that were under way, not behind all


def test_all_who_watch_a_job_share_a_look_until_something_happens(store: Store) -> None:
    job_id = finished(store, "alice", 1)
    job = number(store, job_id)
    looks = 0

    def count(*_: object) -> None:
        nonlocal looks
        looks += 1

    async def work() -> tuple[int, list[events.Latest], events.Latest]:
        database = JobDatabase(store)
        found = await asyncio.gather(*(database.latest(job) for _ in range(20)))
        shared = looks
        with store.write() as session:
            events.append_event(session, session.get_one(Job, job), "progress", {})
        database.notify(job)
        after = await database.latest(job)
        database.close()
        return shared, found, after

    sa.event.listen(store._engine, "checkout", count)
    shared, found, after = asyncio.run(work())

    assert shared == 1
    assert {(latest.state, latest.sequence) for latest in found} == {("succeeded", 3)}
    assert (after.state, after.sequence) == ("succeeded", 4)


def test_jobs_are_submitted_beside_unread_answers(archive: Archive) -> None:
    first, _ = archive.large
    with archive.unread("alice", f"{first}/results?samples=true"), archive.http("bob") as http:
        submitted = http.post("/v1/jobs", json={**JOB, "fresh": True})
        job: dict[str, Any] = submitted.json()
        cancelled = http.post(f"/v1/jobs/{job['id']}/cancel")

    assert (submitted.status_code, cancelled.status_code) == (201, 200)
