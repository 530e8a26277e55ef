"""Who may read a job, from Python and from a shell, on a real server; and `warpcall open`, with a
program that stands for the browser."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.e2e.command import Warpcall
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client, submit
from warpcall import AsyncClient, Client, InvalidInput, NotFound

pytestmark = pytest.mark.slow

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


HTML = {"accept": "text/html"}


@dataclass(frozen=True)
class Keyed:
    """A server with keys, and a job of alice's."""

    server: Server
    key: str
    job: str


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    key = database.key("alice", "bench")
    settings = {**database.settings, "WARPCALL_ARENA_BYTES": "16MiB", **BRIEF}
    with running_server(settings) as server, client(server, key) as http:
        yield Keyed(server, key, submit(http)["id"])


def open_with(keyed: Keyed, *words: str, **variables: str) -> tuple[int, str, str]:
    """The exit code and the output of the command, in a process of its own: the module that opens
    browsers looks for them once in each process."""
    known = {**os.environ, "WARPCALL_URL": keyed.server.url, "WARPCALL_API_KEY": keyed.key}
    done = subprocess.run(
        [sys.executable, "-m", "warpcall", "open", *words],
        env={**known, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which the browser of this test writes the addresses that it is to open."""
    program, seen = tmp_path / "browser.py", tmp_path / "visited"
    program.write_text(f"import sys\nopen({str(seen)!r}, 'a').write(sys.argv[1] + '\\n')\n")
    words = (sys.executable, str(program), "%s")
    monkeypatch.setenv("BROWSER", " ".join(map(shlex.quote, words)).replace("'%s'", "%s"))
    return seen


def test_the_page_of_a_job_is_printed_and_opened(keyed: Keyed, visited: Path) -> None:
    result = open_with(keyed, keyed.job)

    address = f"{keyed.server.url}/jobs/{keyed.job}"
    assert result == (0, f"{address}\n", "")
    assert visited.read_text() == f"{address}\n"


def test_the_first_page_is_opened_by_default(keyed: Keyed, visited: Path) -> None:
    result = open_with(keyed)

    assert result == (0, f"{keyed.server.url}/\n", "")
    assert visited.read_text() == f"{keyed.server.url}/\n"


def test_an_address_that_is_only_printed_opens_nothing(keyed: Keyed, visited: Path) -> None:
    result = open_with(keyed, keyed.job, "--print")

    assert result == (0, f"{keyed.server.url}/jobs/{keyed.job}\n", "")
    assert not visited.exists()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("0123456789ab", "there is no job"),
        ("../../admin", "must be letters"),
        ("", "must be letters"),
    ],
)
def test_a_job_that_is_not_there_is_said_and_nothing_opened(
    keyed: Keyed, visited: Path, job: str, message: str
) -> None:
    result = open_with(keyed, job)

    assert (result[0], result[1]) == (1, "")
    assert message in result[2]
    assert not visited.exists()


def test_no_browser_is_an_error_after_the_address(keyed: Keyed) -> None:
    failing = f"{shlex.quote(sys.executable)} -c 'raise SystemExit(1)' %s"

    code, out, error = open_with(keyed, BROWSER=failing, PATH="", DISPLAY="", WAYLAND_DISPLAY="")

    assert (code, out) == (1, f"{keyed.server.url}/\n")
    assert "there is no browser" in error


def test_a_socket_of_files_has_no_page(keyed: Keyed, visited: Path) -> None:
    code, _, error = open_with(keyed, "--url", "unix:///run/warpcall.sock")

    assert (code, "http://" in error) == (2, True)
    assert not visited.exists()


def test_the_printed_page_opens_in_a_session_and_else_after_the_log_in(keyed: Keyed) -> None:
    address = open_with(keyed, keyed.job, "--print")[1].strip()

    with httpx.Client(headers=HTML, timeout=30) as browser:
        without = browser.get(address)
        page = urljoin(address, without.headers["location"])
        form = browser.get(page)
        wanted = f"/jobs/{keyed.job}"
        data = {"key": keyed.key, "next": wanted}
        logged_in = browser.post(f"{keyed.server.url}/login", data=data)
        there = urljoin(f"{keyed.server.url}/login", logged_in.headers["location"])
        shown = browser.get(address)

    assert (without.status_code, form.status_code, logged_in.status_code) == (303, 200, 303)
    assert f'name="next" value="{wanted}"' in form.text
    assert there == address
    assert (shown.status_code, keyed.job in shown.text) == (200, True)
