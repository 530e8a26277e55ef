"""The published figures of an H200 as jobs in a database, as `docs/benchmarks/h200.json` has them.

The file has medians, and neither rounds nor intervals. The jobs have none either: nothing is made up.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.job_rows import MANY, RUNNER, caller
from warpcall_kernels import ops
from warpcall_kernels.measuring import JobCase
from warpcall_service.jobs import lifecycle, queue, submissions
from warpcall_service.jobs.models import JobRequest
from warpcall_service.runs.events import EnvironmentKnown
from warpcall_service.store.database import Store
from warpcall_service.store.tables import Job, JobEvent, Measurement
from warpcall_service.store.tables import JobCase as CaseRow

ROOT = Path(__file__).parents[2]
FILE = "docs/benchmarks/h200.json"
TIMES = {"warpcall": "ms", "torch": "eager_ms", "torch.compile": "compile_ms", "copy": "copy_ms"}
MARGIN = 0.01
SUSPECT = 1.03  # times as fast as the copy

Figures = Mapping[str, Any]


def load(store: Store, user: str) -> dict[str, str]:
    """Store a job for each op and version of the file; the ids of the latest ones by op."""
    found = {}
    for commit, at_ms, text in _versions():
        published = json.loads(text)
        for op in dict.fromkeys(row["op"] for row in published["rows"]):
            rows = [row for row in published["rows"] if row["op"] == op]
            found[op] = _store_job(store, user, op, rows, published["machine"], commit, at_ms)
    return found


def _versions() -> list[tuple[str, int, str]]:
    """Each version of the file: commit, time in ms, text. Without a history only the present one."""
    log = _git("log", "--reverse", "--format=%h %ct", "--", FILE)
    commits = [line.split() for line in log.splitlines()]
    found = [(name, int(at) * 1000, _git("show", f"{name}:{FILE}")) for name, at in commits]
    if found:
        return found
    text = (ROOT / FILE).read_text()
    day = datetime.fromisoformat(f"{json.loads(text)['machine']['date']}T12:00:00+00:00")
    return [("", int(day.timestamp() * 1000), text)]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _store_job(
    store: Store,
    user: str,
    op: str,
    rows: Sequence[Figures],
    machine: Mapping[str, Any],
    commit: str,
    at_ms: int,
) -> str:
    cases = {case.name: case for case in (*ops()[op].cases, *ops()[op].sweep)}
    jobs = [
        (JobCase(ops()[op], case.inputs, ops()[op].check_params(case.params)), row)
        for row in rows
        if (case := cases.get(row["case"])) is not None
    ]
    # Two cases may differ in nothing but their seed or their group.
    jobs = list({case.key: (case, row) for case, row in jobs}.values())
    names = [name for name, column in TIMES.items() if any(row[column] for _, row in jobs)]
    request = JobRequest.model_validate(
        {
            "op": op,
            "implementations": names,
            "cases": [{"shape": [8], "dtype": "F32"}],
            "fresh": True,
            "tags": ["published"],
            "note": f"From {FILE}{f' at {commit}' if commit else ''}: medians without their rounds",
        }
    )
    checked: Any = {
        "cases": [
            {"spec": case.spec, "key": case.key, "device_bytes": case.device_bytes}
            for case, _ in jobs
        ],
        "implementation_s": 2.0,
        "environment": "",
        "kernels_sha256": commit,
        "sources": {},
    }
    with store.write() as session:
        job, _ = submissions.submit(session, caller(user), request, checked, None, MANY)
        number = job.number
    with store.write() as session:
        claimed = queue.claim(session, RUNNER, MANY)
        assert claimed is not None
        assert claimed.number == number
    environment = " / ".join((machine["gpu"], machine["torch"], machine["triton"]))
    facts = {"kind": "cuda", "device": machine["gpu"], "kernels_sha256": commit}
    facts |= {name: machine[name] for name in ("torch", "triton", "cuda", "python")}
    with store.write() as session:
        job = session.get_one(Job, number)
        lifecycle.set_environment(session, job, EnvironmentKnown(facts, environment, {}))
        lifecycle.advance(session, job, "running")
        for position, (measured, row) in enumerate(jobs):
            lifecycle.save_case(session, job, position, _result(measured, row, names))
        lifecycle.end_job(session, job, "succeeded", "ok", "")
        _date(session, job, at_ms)
        return job.id


def _date(session: Session, job: Job, at_ms: int) -> None:
    """Let a job have ended when the figures were published."""
    job.created_ms = job.started_ms = job.finished_ms = at_ms
    for table, column in ((CaseRow, "finished_ms"), (Measurement, "finished_ms")):
        session.execute(
            sa.update(table).where(table.job_number == job.number).values({column: at_ms})
        )
    session.execute(sa.delete(JobEvent).where(JobEvent.job_number == job.number))


def _result(case: JobCase, row: Figures, names: Sequence[str]) -> dict[str, Any]:
    """The result of a case. What the file does not have is null."""
    times = {name: row[column] and 1e3 * row[column] for name, column in TIMES.items()}
    return {
        "key": case.key,
        "op": case.op.name,
        "spec": case.spec,
        "device": "cuda:0",
        "clock": "cuda events",
        "seed": 0,
        "bytes_moved": row["bytes"],
        "implementations": [_measured(name, times, row) for name in names if times[name]],
        "limit": None if times["copy"] is None else _measured("copy", times, row),
        "column": "device_cold",
        "rounds": 0,
        "masked": [],
        "converged": False,
        "margin": MARGIN,
        "a_a": None,
        "tags": [],
    }


def _measured(name: str, times: Mapping[str, float | None], row: Figures) -> dict[str, Any]:
    median, first, limit = times[name], times["warpcall"], times["copy"]
    assert median is not None
    share = limit / median if limit else None
    columns = ("min_us", "p5_us", "p25_us", "p75_us", "p95_us", "ci_low_us", "ci_high_us")
    ratio = None
    if first and name != "warpcall":
        bounds = {"low": None, "high": None, "n": 0, "verdict": "inconclusive"}
        ratio = {"ratio": median / first, **bounds}
    return {
        "name": name,
        "status": "ok",
        "error": None,
        "traceback": None,
        "method": row["method"] if name == "warpcall" else None,
        "n": 0,
        **dict.fromkeys(columns),
        "median_us": median,
        "relative": ratio,
        "gb_per_s": row["bytes"] / median / 1e3,
        "share_of_limit": share,
        **dict.fromkeys(("peak_bytes", "hot_us", "host_us", "energy_mj")),
        "samples_us": [],
        # As the sampler does, from the same numbers.
        "tags": ["suspect"] if share and name != "copy" and share > SUSPECT else [],
    }
