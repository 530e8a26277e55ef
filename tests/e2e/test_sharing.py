"""Who may read a job, from Python and from a shell, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from demo.server import Server
from tests.e2e.command import Warpcall
from warpcall import AsyncClient, Client, NotFound

CASES = [{"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}]


@pytest.fixture(scope="module")
def job_id(server: Server) -> Iterator[str]:
    """A job that is private by its submission, and ends when it is cancelled."""
    with Client(server.url) as gpu:
        job = gpu.jobs.submit("permute", cases=CASES, fresh=True, private=True)
        assert job.private
        yield job.id
        job.cancel()


def test_a_job_is_made_private_and_readable_again(server: Server, job_id: str) -> None:
    async def from_asyncio() -> list[bool]:
        async with AsyncClient(server.url) as gpu:
            job = await gpu.jobs.get(job_id)
            return [(await job.set_private(private)).private for private in (True, False)]

    with Client(server.url) as gpu:
        job = gpu.jobs.get(job_id)
        found = [job.set_private(False).private, job.set_private().private]

    assert found == [False, True]
    assert asyncio.run(from_asyncio()) == [True, False]


def test_the_command_line_says_who_may_read_a_job(warpcall: Warpcall, job_id: str) -> None:
    private = warpcall("private", job_id)
    shown = json.loads(warpcall("public", job_id, "--json")[1])
    absent = warpcall("private", "0123456789ab")

    assert private == (0, f"{job_id} can be read by only its user and administrators\n", "")
    assert shown["private"] is False
    assert absent[0] == 1
    assert "there is no job" in absent[2]


def test_jobs_of_all_users_are_listed_when_asked_for(
    server: Server, warpcall: Warpcall, job_id: str
) -> None:
    with Client(server.url) as gpu:
        found = {
            user: [job.id for job in gpu.jobs.list(user=user)] for user in (None, "all", "nobody")
        }
    listed = json.loads(warpcall("jobs", "--user", "all", "--json")[1])

    assert job_id in found[None]
    assert job_id in found["all"]
    assert found["nobody"] == []
    assert job_id in [job["id"] for job in listed]


def test_a_job_that_is_not_there_cannot_be_shown(server: Server) -> None:
    with Client(server.url) as gpu, pytest.raises(NotFound, match="private to another user"):
        gpu.jobs.get("0123456789ab")
