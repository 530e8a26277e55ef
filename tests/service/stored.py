"""Jobs with large results in a database, as finished jobs leave them."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import sqlalchemy as sa

from tests.service.job_rows import caller, checked, request
from warpcall_bench.jobs import events, lifecycle, submissions
from warpcall_bench.jobs.tables import Job, JobCase, JobEvent
from warpcall_service.store.database import Store

IMPLEMENTATIONS = [f"implementation-{number}" for number in reversed(range(8))]
SHOWN = {
    "spec": {},
    "device": "cpu",
    "clock": "perf_counter",
    "column": "device_cold",
    "masked": [],
    "converged": True,
    "margin": 0.01,
    "a_a": None,
    "bytes_moved": 4096,
    "limit": None,
    "tags": [],
}


def finished(
    store: Store,
    user: str,
    cases: int,
    rounds: int = 3,
    seed: int = 0,
    of: int | None = None,
    **fields: Any,
) -> str:
    """The id of a job that has measured `cases` of its cases.

    Args:
        of: how many cases the job has; None means no more than were measured.
        fields: of the request.
    """
    with store.write() as session:
        asked = request(fresh=True, implementations=IMPLEMENTATIONS, **fields)
        given = checked(of or cases)
        job, _ = submissions.submit(session, caller(user), asked, given, None, 1000)
        session.flush()
        job.environment = "a machine"
        for position in range(cases):
            lifecycle.save_case(session, job, position, result(rounds, seed + position % 3))
        lifecycle.end_job(session, job, "succeeded", "ok", "")
        return job.id


def complete(store: Store, job_id: str) -> None:
    """Let a job that waits have ended, with a time of each implementation in each of its cases."""
    with store.write() as session:
        job = session.scalars(sa.select(Job).where(Job.id == job_id)).one()
        names = json.loads(job.request)["implementations"]
        rows = [implementation(name, [2.0, 2.0, 2.0]) for name in names]
        for position in range(job.cases_total):
            change = {"implementations": rows}
            lifecycle.save_case(session, job, position, {**SHOWN, "rounds": 3, **change})
        lifecycle.end_job(session, job, "succeeded", "ok", "")


def result(rounds: int, seed: int, **change: Any) -> dict[str, Any]:
    """The sampler's answer for a case."""
    drawn = np.random.default_rng(seed).lognormal(3, 0.05, (len(IMPLEMENTATIONS), rounds))
    drawn_by_name = zip(IMPLEMENTATIONS, drawn.tolist(), strict=True)
    implementations = [implementation(name, samples) for name, samples in drawn_by_name]
    return {**SHOWN, "rounds": rounds, "implementations": implementations, **change}


def implementation(name: str, samples_us: list[float | None], status: str = "ok") -> dict[str, Any]:
    """What the sampler tells of one implementation."""
    return {
        "name": name,
        "status": status,
        "error": None,
        "method": "perf_counter",
        "n": len(samples_us),
        **dict.fromkeys(("p5_us", "p25_us", "p75_us", "p95_us", "min_us"), 2.0),
        **dict.fromkeys(("median_us", "ci_low_us", "ci_high_us"), 2.0),
        **dict.fromkeys(("gb_per_s", "share_of_limit", "peak_bytes", "hot_us", "host_us"), None),
        "energy_mj": None,
        "relative": None,
        "samples_us": samples_us,
        "tags": ["a", "b"],
    }


def damage(store: Store, job_id: str, position: int) -> None:
    """Make the stored result of a case unreadable."""
    with store.write() as session:
        case = session.get_one(JobCase, (number(store, job_id), position))
        case.result = zlib.compress(b"{")


def add_events(store: Store, job_id: str, count: int) -> None:
    """Let a job have made progress before it ended, many times."""
    with store.write() as session:
        job = session.scalars(sa.select(Job).where(Job.id == job_id)).one()
        last = len(events.after(session, job.number, 0))
        rows = [
            {
                "job_number": job.number,
                "sequence": last + 1 + i,
                "at_ms": 1_700_000_000_007 + i,
                "kind": "progress",
                "data": json.dumps(
                    {"position": i, "note": 'a "quoted" é\n'}, separators=(",", ":")
                ),
            }
            for i in range(count)
        ]
        session.execute(sa.insert(JobEvent), rows)


def number(store: Store, job_id: str) -> int:
    """The number of a job in the database."""
    with store.read() as session:
        return session.scalars(sa.select(Job.number).where(Job.id == job_id)).one()
