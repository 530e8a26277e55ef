"""Published figures of an H200 as jobs in a database: those of `docs/benchmarks/h200.json`, and of
the table in `docs/benchmarking.md`.

The first have medians only, the second also intervals and verdicts. Neither has rounds, and so the
jobs have none: nothing is made up.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.job_rows import MANY, RUNNER, caller
from warpcall_bench.jobs import lifecycle, queue, submissions
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.placement import Device
from warpcall_bench.jobs.tables import Job, JobEvent, Measurement
from warpcall_bench.jobs.tables import JobCase as CaseRow
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_kernels import ops
from warpcall_kernels.measuring import JobCase, make_case
from warpcall_service.store.database import Store

ROOT = Path(__file__).parents[2]
FILE = "docs/benchmarks/h200.json"
PAGE = "docs/benchmarking.md"
MODEL = "NVIDIA H200"
# The columns of the file with the times of each implementation, in ms.
TIMES = {"warpcall": "ms", "torch": "eager_ms", "torch.compile": "compile_ms", "copy": "copy_ms"}
NUMBER = r"[\d.]+"
# A row of the table: name, median, interval, ratio, interval, verdict, GB/s, share of the limit.
ROW = re.compile(
    rf"  (\S+) +({NUMBER}) +({NUMBER})-({NUMBER})"
    rf"(?: +({NUMBER}) +({NUMBER})-({NUMBER}) +(\w+))? +{NUMBER} +\d+%"
)
MARGIN = 0.01  # the least one
SUSPECT = 1.03  # times as fast as the copy: the sampler tags such a result


@dataclass(frozen=True)
class Time:
    """What is published about an implementation in a case, in us. What is not is None."""

    name: str
    median: float
    interval: tuple[float | None, float | None] = (None, None)
    ratio: float | None = None
    ratio_interval: tuple[float | None, float | None] = (None, None)
    verdict: str | None = None
    method: str | None = None


Measured = Sequence[tuple[JobCase, Sequence[Time]]]


def load(store: Store, user: str, *, newest_only: bool = False) -> dict[str, str]:
    """Store the jobs; the ids of the latest ones by op, and that of the table as "table".

    Args:
        newest_only: store those of the newest commit of the file, instead of those of each commit.
    """
    page = (ROOT / PAGE).read_text()
    first = next(line for line in page.splitlines() if ROW.fullmatch(line))
    _, page_ms, _ = _versions(PAGE, f"-S{first}", "--", PAGE)[0]
    found: dict[str, str] = {}
    which = ("-1", "--", FILE) if newest_only else ("--", FILE)
    for commit, at_ms, text in _versions(FILE, *which):
        if at_ms > page_ms and "table" not in found:
            found["table"] = _store_table(store, user, page, page_ms)
        published = json.loads(text)
        machine = published["machine"]
        names = ("torch", "triton", "cuda", "python")
        facts = {name: machine[name] for name in names} | {"kernels_sha256": commit}
        for op in dict.fromkeys(row["op"] for row in published["rows"]):
            rows = [row for row in published["rows"] if row["op"] == op]
            note = f"From {FILE} at {commit}: medians without their rounds"
            found[op] = _store_job(store, user, _of_file(op, rows), facts, at_ms, note)
    return found | {"table": found.get("table") or _store_table(store, user, page, page_ms)}


def _store_table(store: Store, user: str, page: str, at_ms: int) -> str:
    note = f"The table in {PAGE}: without its rounds"
    return _store_job(store, user, _of_page(page), {}, at_ms, note, 25.0)


def _versions(path: str, *which: str) -> list[tuple[str, int, str]]:
    """Commits with a file, the first one first: the name, the time in ms, and the file's text."""
    log = _git("log", "--reverse", "--format=%h %ct", *which)
    found = [line.split() for line in log.splitlines()]
    if not found:  # a copy without a history
        text = (ROOT / path).read_text()
        day = datetime.fromisoformat(json.loads((ROOT / FILE).read_text())["machine"]["date"])
        return [("an unknown commit", int(day.timestamp() * 1000), text)]
    return [(name, int(at) * 1000, _git("show", f"{name}:{path}")) for name, at in found]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _of_file(op: str, rows: Sequence[Mapping[str, Any]]) -> Measured:
    """The cases of an op in the file. Two may differ in nothing but their seed: one is kept."""
    cases = {case.name: case for case in (*ops()[op].cases, *ops()[op].sweep)}
    found = {}
    for row in rows:
        if (case := cases.get(row["case"])) is not None:
            measured = JobCase(ops()[op], case.inputs, ops()[op].check_params(case.params))
            first = 1e3 * row["ms"]
            times = [
                Time(name, 1e3 * row[column], ratio=1e3 * row[column] / first)
                for name, column in TIMES.items()
                if row[column] and name != "warpcall"
            ]
            ours = Time("warpcall", first, method=row["method"])
            found[measured.key] = (measured, [ours, *times])
    return list(found.values())


def _of_page(text: str) -> Measured:
    """The cases of the table."""
    found: list[tuple[JobCase, list[Time]]] = []
    for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        if (row := ROW.fullmatch(line)) is None:
            continue
        if head := re.fullmatch(r"permute x=(\w+)\[(\d+),(\d+)\] dims=1,0", before):
            shape = [int(head[2]), int(head[3])]
            spec = {"shape": shape, "dtype": head[1], "params": {"dims": [1, 0]}}
            found.append((make_case("permute", spec), []))
        name, *numbers = row.group(1, 2, 3, 4, 5, 6, 7)
        median, low, high, ratio, *ends = (None if one is None else float(one) for one in numbers)
        assert median is not None
        time = Time(name, median, (low, high), ratio, (ends[0], ends[1]), row[8])
        found[-1][1].append(time)
    return found


def _store_job(
    store: Store,
    user: str,
    measured: Measured,
    facts: Mapping[str, Any],
    at_ms: int,
    note: str,
    took_s: float = 0.0,
) -> str:
    op = measured[0][0].op.name
    known = {time.name for _, times in measured for time in times}
    names = [name for name in TIMES if name in known]
    request = JobRequest.model_validate(
        {
            "op": op,
            "implementations": names,
            "cases": [{"shape": [8], "dtype": "F32"}],
            "precision": "quick",
            "fresh": True,
            "tags": ["published"],
            "note": note,
        }
    )
    checked: Any = {
        "cases": [
            {"spec": case.spec, "key": case.key, "device_bytes": case.device_bytes}
            for case, _ in measured
        ],
        "implementation_s": 2.0,
        "environment": "",
        "kernels_sha256": "",
        "sources": {},
    }
    with store.write() as session:
        job, _ = submissions.submit(session, caller(user), request, checked, None, MANY)
        number = job.number
    with store.write() as session:
        claimed = queue.claim(session, RUNNER, Device(RUNNER, "gpu-box", MODEL), lambda user: MANY)
        assert claimed is not None
        assert claimed.number == number
    versions = [facts[name] for name in ("torch", "triton") if name in facts]
    environment = " / ".join((MODEL, *versions))
    fingerprint = {"kernels_sha256": "", **facts, "kind": "cuda", "device": MODEL}
    with store.write() as session:
        job = session.get_one(Job, number)
        lifecycle.set_environment(session, job, EnvironmentKnown(fingerprint, environment, {}))
        lifecycle.advance(session, job, "running")
        for position, (case, times) in enumerate(measured):
            lifecycle.save_case(session, job, position, _result(case, times))
        lifecycle.end_job(session, job, "succeeded", "ok", "", int(1000 * took_s))
        _date(session, job, at_ms)
        return job.id


def _date(session: Session, job: Job, at_ms: int) -> None:
    """Let a job have ended when its figures were published."""
    job.created_ms = job.started_ms = job.finished_ms = at_ms
    for table, column in ((CaseRow, "finished_ms"), (Measurement, "finished_ms")):
        session.execute(
            sa.update(table).where(table.job_number == job.number).values({column: at_ms})
        )
    session.execute(sa.delete(JobEvent).where(JobEvent.job_number == job.number))


def _result(case: JobCase, times: Sequence[Time]) -> dict[str, Any]:
    """The result of a case, as the sampler gives it."""
    limit = next((time for time in times if time.name == "copy"), None)
    rows = [_row(case, time, None if limit is None else limit.median) for time in times]
    return {
        "key": case.key,
        "op": case.op.name,
        "spec": case.spec,
        "device": "cuda:0",
        "clock": "cuda events",
        "seed": 0,
        "bytes_moved": case.bytes_moved,
        "implementations": rows,
        "limit": None if limit is None else rows[times.index(limit)],
        "column": "device_cold",
        "rounds": 0,
        "masked": [],
        "converged": False,
        "margin": MARGIN,
        "a_a": None,
        "tags": [],
    }


def _row(case: JobCase, time: Time, limit_us: float | None) -> dict[str, Any]:
    relative = None
    if time.ratio is not None:
        low, high = time.ratio_interval
        # The table calls the copy the limit; the sampler had found that it takes less time.
        verdict = "faster" if time.verdict == "limit" else time.verdict or "inconclusive"
        relative = {"ratio": time.ratio, "low": low, "high": high, "n": 0, "verdict": verdict}
    share = None if limit_us is None else limit_us / time.median
    suspect = share is not None and time.name != "copy" and share > SUSPECT
    unknown = ("min_us", "p5_us", "p25_us", "p75_us", "p95_us", "peak_bytes", "hot_us", "host_us")
    return {
        "name": time.name,
        "status": "ok",
        "error": None,
        "traceback": None,
        "method": time.method,
        "n": 0,
        **dict.fromkeys((*unknown, "energy_mj")),
        "median_us": time.median,
        "ci_low_us": time.interval[0],
        "ci_high_us": time.interval[1],
        "relative": relative,
        "gb_per_s": case.bytes_moved / time.median / 1e3,
        "share_of_limit": share,
        "samples_us": [],
        "tags": ["suspect"] if suspect else [],
    }
