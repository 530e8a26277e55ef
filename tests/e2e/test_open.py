"""`warpcall open` on a real server, with a program that stands for the browser."""

from __future__ import annotations

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

from demo.server import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client, submit

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


def warpcall(keyed: Keyed, *words: str, **variables: str) -> tuple[int, str, str]:
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
    result = warpcall(keyed, keyed.job)

    address = f"{keyed.server.url}/jobs/{keyed.job}"
    assert result == (0, f"{address}\n", "")
    assert visited.read_text() == f"{address}\n"


def test_the_first_page_is_opened_by_default(keyed: Keyed, visited: Path) -> None:
    result = warpcall(keyed)

    assert result == (0, f"{keyed.server.url}/\n", "")
    assert visited.read_text() == f"{keyed.server.url}/\n"


def test_an_address_that_is_only_printed_opens_nothing(keyed: Keyed, visited: Path) -> None:
    result = warpcall(keyed, keyed.job, "--print")

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
    result = warpcall(keyed, job)

    assert (result[0], result[1]) == (1, "")
    assert message in result[2]
    assert not visited.exists()


def test_no_browser_is_an_error_after_the_address(keyed: Keyed) -> None:
    failing = f"{shlex.quote(sys.executable)} -c 'raise SystemExit(1)' %s"

    code, out, error = warpcall(keyed, BROWSER=failing, PATH="", DISPLAY="", WAYLAND_DISPLAY="")

    assert (code, out) == (1, f"{keyed.server.url}/\n")
    assert "there is no browser" in error


def test_a_socket_of_files_has_no_page(keyed: Keyed, visited: Path) -> None:
    code, _, error = warpcall(keyed, "--url", "unix:///run/warpcall.sock")

    assert (code, "http://" in error) == (2, True)
    assert not visited.exists()


def test_the_printed_page_opens_in_a_session_and_else_after_the_log_in(keyed: Keyed) -> None:
    address = warpcall(keyed, keyed.job, "--print")[1].strip()

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
