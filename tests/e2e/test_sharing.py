"""Who may read a job, from Python and from a shell, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from demo.server import Server
from tests.e2e.command import Warpcall
from warpcall import AsyncClient, Client, InvalidInput, NotFound

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


def opened(url: str) -> int:
    """The status of the API's answer to whoever has the link."""
    return httpx.get(url.replace("/share/", "/v1/shared/"), timeout=30).status_code


def test_a_link_opens_a_job_until_it_is_revoked(server: Server, job_id: str) -> None:
    async def from_asyncio() -> tuple[str, list[str]]:
        async with AsyncClient(server.url) as gpu:
            job = await gpu.jobs.get(job_id)
            made = await job.share(other=job_id)
            ids = [one.id for one in await gpu.jobs.shares()]
            await gpu.jobs.revoke_share(made.id)
            return made.url, ids

    with Client(server.url) as gpu:
        job = gpu.jobs.get(job_id).set_private()
        with pytest.raises(InvalidInput, match="is private"):
            job.share()
        made = job.set_private(False).share(expires_s=3600)
        listed = {one.id: one for one in gpu.jobs.shares(user="all")}
        before = opened(made.url)
        gpu.jobs.revoke_share(made.id)
        with pytest.raises(NotFound):
            gpu.jobs.revoke_share(made.id)
    url, ids = asyncio.run(from_asyncio())

    assert made.url.startswith(f"{server.url}/share/sh_")
    assert listed[made.id].expires_at == made.expires_at is not None
    assert (before, opened(made.url), opened(url)) == (200, 404, 404)
    assert len(ids) == 1


def test_the_command_line_makes_lists_and_revokes_links(
    warpcall: Warpcall, server: Server, job_id: str
) -> None:
    warpcall("public", job_id)

    code, out, _ = warpcall("share", job_id, "--expires", "7d")
    made = json.loads(warpcall("share", job_id, "--compare", job_id, "--json")[1])
    listed = json.loads(warpcall("share", "--list", "--json")[1])
    table = warpcall("share", "--list")[1]
    before = opened(out.strip())
    revoked = [warpcall("share", "--revoke", one["id"]) for one in listed]
    empty = warpcall("share", "--list")[1]

    assert code == 0
    assert out.startswith(f"{server.url}/share/sh_")
    assert (made["other"], made["expires_at"]) == (job_id, None)
    assert {one["id"] for one in listed} > {made["id"]}
    assert made["id"] in table
    assert f"{job_id} and {job_id}" in table
    assert (before, opened(out.strip())) == (200, 404)
    assert [one[:2] for one in revoked] == [(0, f"{one['id']} is revoked\n") for one in listed]
    assert empty == "no links\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give the id of a job, --list or --revoke LINK"),
        (("a", "--list"), "give the id of a job, --list or --revoke LINK"),
        (("--list", "--expires", "7d"), "--compare and --expires are for the id of a job"),
        (("a", "--expires", "7"), "--expires must be a number with m, h, d or y, at most 10y"),
        (("a", "--expires", "11y"), "--expires must be a number with m, h, d or y, at most 10y"),
    ],
)
def test_what_is_typed_wrong_makes_no_link(
    warpcall: Warpcall, words: tuple[str, ...], message: str
) -> None:
    code, out, error = warpcall("share", *words)

    assert (code, out) == (2, "")
    assert message in error
