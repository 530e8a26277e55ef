"""How long lists, filters and histories take in a database of many jobs: python -m
bench.jobs.stored_jobs

Through a real server, over HTTP; on SQLite, or on the PostgreSQL that --database-url names (an
empty one).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import sqlalchemy as sa

from demo.server import running_server
from warpcall_bench.jobs import measurements
from warpcall_bench.jobs.tables import Job, JobCase, JobEvent, JobTag, Measurement
from warpcall_service.store.database import Store
from warpcall_service.store.times import now_ms

REPEATS = 50
OPS = ("permute", "conv", "isin", "masked-softmax")
IMPLEMENTATIONS = ("warpcall", "torch", "torch.compile", "copy")
CASES = 4  # of each job


def main() -> None:
    """Fill a database, start a server on it, and print medians and the slowest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=200, help="of these, how many wait")
    parser.add_argument("--database-url")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_ARENA_BYTES": "16MiB"}
        if args.database_url:
            settings["WARPCALL_DATABASE_URL"] = args.database_url
        store = Store(args.database_url, Path(folder))
        store.migrate()
        began = time.monotonic()
        fill(store, args.jobs, args.queued)
        store.close()
        say(f"{args.jobs} jobs in {store.label}, made in {time.monotonic() - began:.1f} s")
        # Those that wait are of the user whose job another server runs: none of them is begun here.
        settings |= {"WARPCALL_USER_RUNNING_JOBS": "1", "WARPCALL_JOB_LEASE_S": "86400"}
        with running_server(settings) as server:
            case = "permute%20case%201"
            for what, path in {
                "list": "/v1/jobs",
                "500 of them": "/v1/jobs?limit=500",
                "by state": "/v1/jobs?state=failed",
                "by user and op": "/v1/jobs?user=user3&op=conv",
                "by tag": "/v1/jobs?tag=tag7",
                "by tag that is rare": "/v1/jobs?tag=rare",
                "the last page": f"/v1/jobs?before={identity(50)}",
                "one": f"/v1/jobs/{identity(50)}",
                "the queue": "/v1/jobs/queue",
                "history": f"/v1/jobs/history?op=permute&implementation=torch&case={case}",
                "results": f"/v1/jobs/{identity(50)}/results",
                "page of the queue": "/",
                "page of jobs": "/jobs",
                "page of a job": f"/jobs/{identity(50)}",
                "board": "/board?op=permute",
                "board of a case": f"/board?op=permute&case={case}",
                "page of a history": f"/history?op=permute&implementation=torch&case={case}",
                "page of an op": "/kernels/permute",
            }.items():
                times_ms = []
                for _ in range(REPEATS):
                    begin = time.perf_counter()
                    with urlopen(server.url + path) as answer:
                        nbytes = len(answer.read())
                    times_ms.append((time.perf_counter() - begin) * 1e3)
                say(
                    f"{what:20} median {statistics.median(times_ms):6.1f} ms, slowest "
                    f"{max(times_ms):6.1f} ms, {nbytes} bytes"
                )


def identity(number: int) -> str:
    """The id of a job."""
    return f"{number:012x}"


def fill(store: Store, jobs: int, queued: int, after: int = 0) -> None:
    """Make jobs as they are after months of use, and one that another server runs.

    Args:
        after: number of jobs that the database has already.
    """
    drawn = random.Random(1)
    rows: dict[type, list[dict[str, object]]] = {
        kind: [] for kind in (Job, JobTag, JobCase, Measurement, JobEvent)
    }
    last = after + jobs
    for number in range(after + 1, last + 1):
        op = drawn.choice(OPS)
        state = "queued" if number > last - queued else drawn.choice(["succeeded"] * 9 + ["failed"])
        if number == last - queued:
            state = "running"
        done = state in ("succeeded", "failed")
        rows[Job].append(job(number, op, state, drawn.randrange(30) if done else 0))
        for tag in {f"tag{drawn.randrange(20)}", "all", *(["rare"] if number == 77 else [])}:
            rows[JobTag].append({"job_number": number, "tag": tag})
        for position in range(CASES):
            key = f"{op} case {position}"
            rows[JobCase].append(
                {"job_number": number, "position": position, "spec": "{}", "key": key}
            )
            for implementation in IMPLEMENTATIONS if done else ():
                rows[Measurement].append(measurement(number, position, op, implementation, key))
        for sequence in range(1, 30):
            event = {"job_number": number, "sequence": sequence, "at_ms": 0, "kind": "progress"}
            rows[JobEvent].append({**event, "data": '{"phase": "rounds", "rounds": 100}'})
    with store.write() as session:
        for kind, made in rows.items():
            for begin in range(0, len(made), 5000):
                session.execute(sa.insert(kind), made[begin : begin + 5000])


def job(number: int, op: str, state: str, user: int) -> dict[str, object]:
    """The row of a job."""
    now = now_ms()
    return {
        "id": identity(number),
        "user_name": f"user{user}",
        "request": json.dumps({"op": op}),
        **dict.fromkeys(("request_sha256", "question_sha256"), "0" * 64),
        "op": op,
        "implementations": json.dumps(IMPLEMENTATIONS),
        "precision": "quick",
        "priority": 1,
        "tags": "[]",
        "note": "",
        "state": state,
        "detail": "",
        "cases_total": CASES,
        "cases_done": CASES,
        "attempts": 1,
        "created_ms": now,
        "started_ms": None if state == "queued" else now,
        "since_us": 0,
        "cost_us": 30_000_000,
        **dict.fromkeys(("nominal_ms", "estimated_ms", "took_ms"), 30_000),
        "runner": "elsewhere",
        "environment": "a machine",
        "fingerprint": json.dumps({"torch": "2.13", "device": "a device"}),
    }


def measurement(
    number: int, position: int, op: str, implementation: str, key: str
) -> dict[str, object]:
    """The row of a measurement."""
    times = dict.fromkeys(
        ("median_us", "ci_low_us", "ci_high_us", "min_us", "p5_us", "p25_us", "p75_us", "p95_us"),
        12.5,
    )
    others = dict.fromkeys(("peak_bytes", "hot_us", "host_us", "energy_mj", "relative", "error"))
    summary = {"name": implementation, "status": "ok", "method": "events", "n": 500, "tags": []}
    return {
        "job_number": number,
        "position": position,
        "implementation": implementation,
        "series_sha256": measurements.series(op, implementation, key),
        "environment": "a machine",
        "finished_ms": now_ms(),
        "status": "ok",
        "median_us": 12.5 + number % 7 / 100,
        "limit_us": 11.5,
        "summary": json.dumps(
            {**summary, **times, **others, "gb_per_s": 1000.0, "share_of_limit": 0.9}
        ),
    }


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
