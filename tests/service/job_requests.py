"""Jobs as tests submit and await them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import psutil

from demo.server import Server
from tests.template import BRIEF_JOBS, TEMPLATE
from tests.waiting import lives
from warpcall.jobs import UNFINISHED

WAIT_S = 120.0  # other tests run at the same time, and may leave little of the CPU
CHECK_EVERY_S = 0.05
CHECK_WHAT_LASTS_EVERY_S = 0.1
SHARE_OF_WAIT = 0.1  # of the time that a job has taken, until it is read again
# In the command lines of processes below a server that belong to no job.
NO_JOBS = (
    "warpcall_service.worker.main",
    "warpcall_bench.programs.module_check",
    TEMPLATE,
)
# Variables of a server whose jobs end soon: see tests/service/brief_jobs/sitecustomize.py
BRIEF = {"PYTHONPATH": os.pathsep.join([BRIEF_JOBS, *filter(None, [os.environ.get("PYTHONPATH")])])}
CASE = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
JOB = {"op": "permute", "implementations": ["warpcall"], "cases": [CASE], "precision": "quick"}

Job = dict[str, Any]


def client(server: Server, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=30)


def submit(http: httpx.Client, key: str = "", **fields: Any) -> Job:
    """Submit a quick job, and check that it was taken."""
    headers = {"idempotency-key": key} if key else {}
    answer = http.post("/v1/jobs", json={**JOB, **fields}, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    assert (answer.status_code == 200) is answer.json()["reused"]
    found: Job = answer.json()
    return found


def show(http: httpx.Client, job: Job) -> Job:
    answer = http.get(f"/v1/jobs/{job['id']}")
    assert answer.status_code == 200, answer.text
    found: Job = answer.json()
    return found


def known_tags(row: Mapping[str, Any]) -> list[str]:
    """The tags of a row, except the one that each row of uploaded code may have on a busy machine.

    Its times are `unconfirmed` on a CPU if its threads may have kept our clock waiting.
    """
    return [tag for tag in row["tags"] if tag != "unconfirmed"]


def ended(http: httpx.Client, job: Job) -> Job:
    """The job, once it has ended."""
    return reached(http, job, lambda found: found["state"] not in UNFINISHED, passes=False)


def reached(
    http: httpx.Client,
    job: Job,
    there: Callable[[Job], bool],
    wait_s: float = WAIT_S,
    *,
    passes: bool = True,
) -> Job:
    """The job, once it is as wanted.

    Args:
        passes: what is wanted may not last. Otherwise the job is read less often the longer it takes:
            an answer takes 5 ms of CPU time, which the job needs on a busy machine.
    """
    began = time.monotonic()
    while not there(found := show(http, job)):
        took_s = time.monotonic() - began
        assert took_s < wait_s, found
        time.sleep(
            CHECK_EVERY_S if passes else max(CHECK_WHAT_LASTS_EVERY_S, took_s * SHARE_OF_WAIT)
        )
    return found


def results(http: httpx.Client, job: Job) -> dict[str, Any]:
    answer = http.get(f"/v1/jobs/{job['id']}/results", params={"samples": True})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events(http: httpx.Client, job: Job, last: int = 0) -> Iterator[dict[str, Any]]:
    """What the stream sends after an event, until it ends."""
    headers = {"last-event-id": str(last)} if last else {}
    with http.stream("GET", f"/v1/jobs/{job['id']}/events", headers=headers) as answer:
        assert answer.status_code in (200, 204)
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def processes(server: Server) -> list[psutil.Process]:
    """Everything below a server that belongs to jobs; the first is a reaper."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with gone_is_gone():
            if lives(child) and not any(other in " ".join(child.cmdline()) for other in NO_JOBS):
                found.append(child)
    return found


def measurer(server: Server) -> psutil.Process:
    """The process that measures; waits while there is none."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for process in processes(server):
            with gone_is_gone():
                if "warpcall_bench.programs.job_main" in process.cmdline()[:4]:
                    return process
        time.sleep(0.02)
    raise AssertionError("no process measures")


@contextmanager
def gone_is_gone() -> Iterator[None]:
    with suppress(psutil.NoSuchProcess):
        yield
