"""Jobs in a database, without a server: submitted, taken and finished as one would do it."""

from __future__ import annotations

from typing import Any

from warpcall_bench.jobs import lifecycle, queue, submissions
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.placement import Device, Devices
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.messages import Checked
from warpcall_service.identity import Caller, Role
from warpcall_service.store.database import Store

RUNNER = "here"
DEVICE = Device(RUNNER, "host", "a device")
DEVICES = Devices(1, [DEVICE])
MANY = 1000  # more than a test may have of them


def caller(name: str, role: Role = "bench") -> Caller:
    return Caller(name, role)


def request(**fields: Any) -> JobRequest:
    cases = [{"shape": [8], "dtype": "F32"}]
    return JobRequest.model_validate({"op": "permute", "cases": cases, **fields})


def checked(cases: int = 1, implementation_s: float = 2.0) -> Checked:
    return {
        "cases": [{"spec": {"n": i}, "key": f"case {i}", "device_bytes": 8} for i in range(cases)],
        "implementation_s": implementation_s,
        "environment": "a machine",
        "kernels_sha256": "0",
        "memory_bytes": 1 << 30,
        "sources": {},
    }


def submit(
    store: Store, user: str, *, key: str | None = None, cases: int = 1, **fields: Any
) -> str:
    with store.write() as session:
        asked = request(**{"fresh": True, **fields})
        job, _ = submissions.submit(session, caller(user), asked, checked(cases), key, MANY)
        return job.id


def claim(
    store: Store, user_running: int = MANY, runner: str = RUNNER, device: Device = DEVICE
) -> Job | None:
    with store.write() as session:
        job = queue.claim(session, runner, device, lambda user: user_running)
        if job is not None:
            session.flush()
            session.refresh(job)
            session.expunge(job)
        return job


def claimed(job: Job) -> queue.Claim:
    """The claim that `claim` made."""
    return queue.Claim(job.number, job.runner or "", job.fence)


def finish(store: Store, number: int, took_ms: int, state: Any = "succeeded") -> None:
    with store.write() as session:
        job = session.get_one(Job, number)
        lifecycle.end_job(session, job, state, "ok", "", took_ms)
