"""A lab's database for tests of pages: jobs as servers with GPUs leave them, with made-up times.

Jobs are submitted, claimed, measured and ended by the functions that a server uses. Only the
samples are drawn at random, always the same ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.job_rows import DEVICE, DEVICES, MANY, RUNNER, caller
from tests.service.monitors.lab import add_runs
from tests.service.monitors.series import quiet, times
from warpcall_bench.artefacts.files import ArtefactFiles
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.groups.tables import GroupPart, JobGroup
from warpcall_bench.jobs import lifecycle, queue, submissions
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.monitors import database, outcomes
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_bench.monitors.tables import Monitor, MonitorDelivery
from warpcall_bench.pages.job import job_frame, job_rest
from warpcall_bench.pages.view import REST, View
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_bench.runs.messages import Verified
from warpcall_bench.uploads.database import IMPLEMENTATIONS
from warpcall_bench.uploads.new_versions import NewImplementation, Quota
from warpcall_service.auth import users
from warpcall_service.auth.tables import User
from warpcall_service.store.database import Store
from warpcall_service.store.times import now_ms

H200 = {
    "kind": "cuda",
    "device": "NVIDIA H200",
    "capability": "9.0",
    "driver": "580.95.05",
    "torch": "2.13.0",
    "triton": "3.7.1",
    "cuda": "13.0",
    "python": "3.12.3",
    "sm_clock_max_mhz": 1980,
    "power_limit_w": 700.0,
    "host": "gpu-box",
    "kernels_sha256": "0" * 64,
}
ENVIRONMENT = "NVIDIA H200 / 580.95.05 / 2.13.0 / 3.7.1"
GB_PER_S = 4100.0  # of a copy
SPREAD = 0.003  # of the logarithm of a sample
MARGIN = 0.01
QUOTA = Quota(1000, 1 << 30)

VERIFIED = ("ann/tiles",)  # uploads that are verified kernels

Case = dict[str, Any]


def case(key: str, nbytes: int, dtype: str = "BF16", **params: Any) -> Case:
    """A case as a lane checks it; `key` has no op."""
    spec = {"inputs": {"x": {"shape": [nbytes // 4], "dtype": dtype}}, "params": params}
    return {"key": key, "nbytes": nbytes, "spec": spec}


def permute_cases(sizes: Sequence[int] = (1024, 2048, 4096, 8192)) -> list[Case]:
    """Transpositions of squares."""
    return [
        case(f"permute x={dtype}[{n},{n}] dims=1,0", 2 * n * n * width, dtype, dims=[1, 0])
        for dtype, width in (("BF16", 2), ("F32", 4))
        for n in sizes
    ]


def submit(
    store: Store, user: str, op: str, cases: Sequence[Case], names: Sequence[str], **fields: Any
) -> str:
    """Queue a job and return its id."""
    with store.write() as session:
        asked = JobRequest.model_validate(
            {
                "op": op,
                "implementations": list(names),
                "cases": [{"shape": [8], "dtype": "F32"}],
                "fresh": True,
                **fields,
            }
        )
        checked: Any = {
            "cases": [{**one, "device_bytes": 1 << 20} for one in cases],
            "implementation_s": 2.0,
            "environment": ENVIRONMENT,
            "kernels_sha256": "0" * 64,
            "sources": {},
        }
        job, _ = submissions.submit(session, caller(user), asked, checked, None, MANY)
        return job.id


def measure(
    store: Store,
    speeds: Mapping[str, float],
    *,
    cases: int | None = None,
    state: Any = "succeeded",
    facts: Mapping[str, Any] = H200,
    environment: str = ENVIRONMENT,
    sources: Mapping[str, str] | None = None,
    rounds: int = 120,
    seed: int = 0,
    error: str = "RuntimeError: no kernel for this layout",
    changes: Mapping[int, Mapping[str, Any]] | None = None,
) -> str:
    """Run the next job of the queue and return its id.

    Args:
        speeds: by implementation, its speed relative to the limit; one that is absent fails.
        cases: number of cases that are measured; None means all. If not all are, the job goes on.
        state: how the job ends.
        error: of implementations that fail.
        sources: hash of the source of each implementation.
        changes: by position, members of the case's result that replace the made-up ones.
    """
    with store.write() as session:
        job = queue.claim(session, RUNNER, DEVICE, lambda user: MANY)
        assert job is not None
        number = job.number
    random = np.random.default_rng(seed)
    with store.write() as session:
        job = session.get_one(Job, number)
        job.device = "cuda:0"
        hashes = dict(sources or {})
        lifecycle.set_environment(session, job, EnvironmentKnown(facts, environment, hashes))
        lifecycle.advance(session, job, "running")
    names = _names(store, number)
    specs = _specs(store, number)
    for position, (key, nbytes) in enumerate(specs[:cases]):
        with store.write() as session:
            job = session.get_one(Job, number)
            for phase in ("correctness", "warmup", "rounds"):
                append_event(session, job, "progress", {"position": position, "phase": phase})
            found = result(key, nbytes, names, speeds, rounds, random, error)
            found |= (changes or {}).get(position, {})
            lifecycle.save_case(session, job, position, found)
    with store.write() as session:
        job = session.get_one(Job, number)
        if cases is None or cases >= len(specs):
            lifecycle.end_job(session, job, state, "ok", "", 25_000)
        else:
            at: dict[str, Any] = {
                "position": cases,
                "phase": "rounds",
                "rounds": 60,
                "half_width": 0.0081,
            }
            at["medians_us"] = {name: 40.0 / speed for name, speed in speeds.items()}
            append_event(session, job, "progress", at)
        return job.id


def monitor(
    store: Store, user: str, text: str, op: str = "isin", runs: int = 14, after: int = 2
) -> str:
    """A paused monitor whose runs have shown a step; its id.

    Args:
        text: why its latest run failed, and why its URL could not be called; empty if it did not.
        after: runs since the step. The thresholds are known from 8 on.
    """
    cases = [{"shape": [64, 64], "dtype": "F32"}]
    request = {"op": op, "implementations": ["warpcall"], "cases": cases}
    wanted = MonitorRequest.model_validate(
        {"job": request, "every_s": 21_600, "notify": f"https://127.0.0.1/{'x' * 300}"}
    )
    with store.write() as session:
        monitor_id = database.add(session, caller(user), wanted, private=False, most=MANY).id
    medians_us = times(quiet, 0, runs, runs - after, 1.05)
    found_at = runs - after + 2  # the run that shows the step
    add_runs(store, monitor_id, medians_us[:found_at], newest=True)
    with store.write() as session:
        row = session.scalars(sa.select(Monitor).where(Monitor.id == monitor_id)).one()
        row.paused = True
        outcomes.note_end(session, row)
        outcomes.note(session, row, text, None)
        session.flush()
        ended = {"state": "failed", "attempts": 5, "detail": text, "finished_ms": row.created_ms}
        theirs = sa.update(MonitorDelivery).where(MonitorDelivery.monitor_number == row.number)
        session.execute(theirs.values(**ended))
    add_runs(store, monitor_id, medians_us[found_at:])
    return monitor_id


def group(store: Store, user: str, jobs: Mapping[str, str]) -> str:
    """The id of a group of jobs, which are given by their models."""
    with store.write() as session:
        made = JobGroup(id="g0123456789ab", user_name=user, request_sha256="", created_ms=now_ms())
        session.add(made)
        session.flush()
        session.add_all(
            GroupPart(
                group_number=made.number,
                position=position,
                job_number=session.scalars(sa.select(Job.number).where(Job.id == job)).one(),
                gpu=gpu,
            )
            for position, (gpu, job) in enumerate(jobs.items())
        )
        return made.id


def add_artefacts(store: Store, folder: Path, job_id: str, text: str) -> None:
    """Two profiles of a job in the data folder of a server, and one that could not be stored.

    Args:
        text: in the name of one, and why one could not be stored.
    """
    content = b"{}"
    files = ArtefactFiles(folder)
    with store.write() as session:
        job = session.scalars(sa.select(Job).where(Job.id == job_id)).one()
        for name, error in (("warpcall-0.json", ""), (f"{text}.json", ""), ("torch-0.json", text)):
            session.add(
                ArtefactRow(
                    job_number=job.number,
                    name=name,
                    user_name=job.user_name,
                    kind="torch-profile",
                    position=0,
                    implementation=name.partition("-0")[0],
                    media_type="application/json",
                    nbytes=0 if error else len(content),
                    sha256="" if error else hashlib.sha256(content).hexdigest(),
                    node="",
                    file="" if error else files.write(content),
                    error=error,
                    created_ms=job.created_ms,
                    expires_ms=job.created_ms + 90 * 86_400_000,
                )
            )


def result(
    key: str,
    nbytes: int,
    names: Sequence[str],
    speeds: Mapping[str, float],
    rounds: int,
    random: np.random.Generator,
    error: str,
) -> dict[str, Any]:
    """The sampler's result of one case."""
    limit_us = nbytes / GB_PER_S / 1e3 + 1.5
    samples = {
        name: limit_us / speeds[name] * (1 + 0.15 / math.log2(nbytes)) * _noise(random, rounds)
        for name in names
        if name in speeds
    }
    copies = limit_us * _noise(random, rounds)
    first = samples.get(names[0])
    return {
        "key": key,
        "op": key.split()[0],
        "spec": {},
        "device": "cuda:0",
        "clock": "cuda events",
        "precision": "standard",
        "seed": 0,
        "bytes_moved": nbytes,
        "output_bytes": nbytes // 2,
        "implementations": [
            measured(
                name,
                samples.get(name),
                first if name != names[0] else None,
                nbytes,
                limit_us,
                error,
            )
            for name in names
        ],
        "limit": measured("copy", copies, None, nbytes, limit_us, ""),
        "column": "device_cold",
        "rounds": rounds,
        "masked": [],
        "converged": True,
        "margin": MARGIN,
        "readings": readings(rounds),
        "a_a": {
            "ratio": 1.0002,
            "low": 0.9986,
            "high": 1.0017,
            "n": rounds // 4,
            "verdict": "same",
        },
        "device_lost": False,
        "seconds": 6.0,
        "tags": [],
    }


def readings(rounds: int) -> dict[str, Any]:
    """The GPU at every fifth round: it grows warm, and its clock falls a little."""
    numbers = range(4, rounds, 5)
    return {
        "rounds": [*numbers],
        "sm_clock_mhz": [1980 - 15 * (3 * number // rounds) for number in numbers],
        "power_w": [round(480 + 160 * (1 - math.exp(-number / 20)), 1) for number in numbers],
        "temperature_c": [48 + 12 * number // rounds for number in numbers],
    }


def measured(
    name: str, samples: Any, first: Any, nbytes: int, limit_us: float, error: str
) -> dict[str, Any]:
    """The result of one implementation; without samples it has failed."""
    empty: dict[str, Any] = {
        "name": name,
        "status": "error",
        "error": error,
        "traceback": f"Traceback (most recent call last):\n{error}",
        "method": None,
        "n": 0,
        **dict.fromkeys(("median_us", "p5_us", "p25_us", "p75_us", "p95_us", "min_us")),
        **dict.fromkeys(("ci_low_us", "ci_high_us", "relative", "gb_per_s", "share_of_limit")),
        **dict.fromkeys(("peak_bytes", "hot_us", "host_us", "energy_mj")),
        "samples_us": [],
        "verified": name in VERIFIED,
        "tags": [],
    }
    if samples is None:
        return empty
    middle, half = float(np.median(samples)), float(1.6 * np.std(samples) / len(samples) ** 0.5)
    quantiles = np.percentile(samples, [5, 25, 75, 95])
    return {
        **empty,
        "status": "ok",
        "error": None,
        "traceback": None,
        "method": "graph of 12",
        "n": len(samples),
        "median_us": middle,
        "ci_low_us": middle - half,
        "ci_high_us": middle + half,
        "min_us": float(samples.min()),
        **dict(zip(("p5_us", "p25_us", "p75_us", "p95_us"), map(float, quantiles), strict=True)),
        "relative": None if first is None else _relative(samples, first),
        "gb_per_s": nbytes / middle / 1e3,
        "share_of_limit": limit_us / middle,
        "peak_bytes": nbytes // 2,
        "hot_us": middle * 0.9,
        "host_us": 6.2,
        "samples_us": [round(float(one), 4) for one in samples],
    }


def _relative(samples: Any, first: Any) -> dict[str, Any]:
    logs = np.log(samples / first)
    middle, half = float(np.median(logs)), float(1.6 * np.std(logs) / len(logs) ** 0.5)
    low, high = middle - half, middle + half
    verdict = "inconclusive"
    if low > MARGIN or high < -MARGIN:
        verdict = "slower" if low > MARGIN else "faster"
    elif low >= -MARGIN and high <= MARGIN:
        verdict = "same"
    return {
        "ratio": math.exp(middle),
        "low": math.exp(low),
        "high": math.exp(high),
        "n": len(logs),
        "verdict": verdict,
    }


def _noise(random: np.random.Generator, rounds: int) -> Any:
    """Samples around 1. The two sets of inputs differ by 0.8 %, as on an H200."""
    sets = 0.004 * np.where(np.arange(rounds) % 2, 1, -1)
    return np.exp(random.normal(0, SPREAD, rounds) + sets)


def _names(store: Store, number: int) -> list[str]:
    with store.read() as session:
        return list(json.loads(session.get_one(Job, number).implementations))


def _specs(store: Store, number: int) -> list[tuple[str, int]]:
    with store.read() as session:
        rows = session.execute(
            sa.select(JobCase.key, JobCase.spec)
            .where(JobCase.job_number == number)
            .order_by(JobCase.position)
        )
        return [(key, 4 * json.loads(spec)["inputs"]["x"]["shape"][0]) for key, spec in rows]


def upload(
    store: Store, user: str, op: str, name: str, source: str, *, private: bool = False
) -> None:
    """Store a version of an implementation, as after its check."""
    verified: Verified | None = None
    if f"{user}/{name}" in VERIFIED:
        verified = {"language": "python", "launches": None}
    with store.write() as session:
        if session.get(User, user) is None:
            users.add_user(session, user)
    function = op.replace("-", "_")
    new = NewImplementation(
        op=op,
        function=function,
        name=name,
        source=source,
        private=private,
        verified=verified,
    )
    with store.write() as session:
        checked = {"doc": "Rows in registers."}
        IMPLEMENTATIONS.store(session, caller(user, "upload"), new, checked, QUOTA)


def job_page(session: Session, view: View, job_id: str) -> str:
    """The page of a job as a reader gets it."""
    frame = job_frame(session, view, job_id, DEVICES)
    return frame.replace(REST, job_rest(session, view, job_id, first=0))
