"""Monitors for tests: requests, and jobs of monitors as rows that finished jobs leave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import sqlalchemy as sa

from tests.service.job_requests import CASE
from tests.service.job_rows import checked
from tests.service.stored import implementation, result
from warpcall_bench.jobs import lifecycle, submissions
from warpcall_bench.monitors import database
from warpcall_bench.monitors.tables import Monitor
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

# Without a GPU there is no time of warpcall that counts.
JOB = {"op": "permute", "implementations": ["torch"], "cases": [CASE], "precision": "quick"}
HOUR_S = 3600
# Runs as often as tests need them.
OFTEN = {"WARPCALL_MONITOR_MIN_EVERY_S": "1"}

Answer = dict[str, Any]


def add(
    http: httpx.Client, *, every_s: int = HOUR_S, job: Answer | None = None, **fields: Any
) -> Answer:
    """Add a monitor, and check that it was taken."""
    answer = http.post(
        "/v1/monitors", json={"job": {**JOB, **(job or {})}, "every_s": every_s, **fields}
    )
    assert answer.status_code == 201, answer.text
    made: Answer = answer.json()
    return made


def show(http: httpx.Client, monitor: Answer) -> Answer:
    answer = http.get(f"/v1/monitors/{monitor['id']}")
    assert answer.status_code == 200, answer.text
    found: Answer = answer.json()
    return found


def add_runs(
    store: Store,
    monitor_id: str,
    medians_us: Sequence[float],
    *,
    newest: bool = False,
    **facts: Any,
) -> list[str]:
    """Jobs of a monitor that have measured these times; their ids.

    Args:
        newest: whether the last one is the monitor's latest run, which was not searched for steps.
        facts: columns of the jobs.
    """
    ids = []
    with store.write() as session:
        monitor = session.scalars(sa.select(Monitor).where(Monitor.id == monitor_id)).one()
        caller = Caller(monitor.user_name, "bench")
        for median_us in medians_us:
            job, _ = submissions.submit(
                session,
                caller,
                database.job_request(monitor),
                checked(),
                None,
                0,
                monitor=monitor.id,
            )
            session.flush()
            job.environment, job.model, job.fingerprint = "a machine", "a device", "{}"
            for column, value in facts.items():
                setattr(job, column, value)
            name = json.loads(job.implementations)[0]
            one = {**implementation(name, [median_us]), "median_us": median_us}
            measured = result(1, 0, implementations=[one])
            lifecycle.save_case(session, job, 0, measured)
            lifecycle.end_job(session, job, "succeeded", "ok", "")
            monitor.runs += 1
            ids.append(job.id)
        if newest:
            monitor.job_number = job.number
    return ids


def at_the_same_time(count: int, act: Callable[[], None]) -> None:
    """Call a function in so many threads, which all begin it at the same moment; wait for their end."""
    start = threading.Barrier(count)

    def begin() -> None:
        start.wait()
        act()

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
