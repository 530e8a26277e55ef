"""What a shell completes: names of ops and ids of jobs, which the server knows."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from warpcall import Client, WarpcallError

TIMEOUT_S = 2.0  # a shell waits no longer than this
MOST_JOBS = 50


def op_names(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The ops whose names begin so, each with its summary; none if the server does not answer."""
    try:
        with _client(context) as gpu:
            found = gpu.kernels()
    except WarpcallError:
        return
    yield from ((op["name"], op["summary"]) for op in found if op["name"].startswith(incomplete))


def job_ids(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The user's latest jobs whose ids begin so; none if the server does not answer."""
    try:
        with _client(context) as gpu:
            found = gpu.jobs.list(limit=MOST_JOBS)
    except WarpcallError:
        return
    yield from ((job.id, f"{job.op} {job.state}") for job in found if job.id.startswith(incomplete))


def _client(context: typer.Context) -> Client:
    return Client(context.params.get("url"), timeout_s=TIMEOUT_S, retries=0, progress=False)
