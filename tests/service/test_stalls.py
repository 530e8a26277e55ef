"""A server whose outputs or dependencies block: it goes on serving, and stops in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import ended, submit
from tests.service.requests import log_of, logged, metrics
from tests.service.stalled import (
    END_S,
    SETTINGS,
    FullPipe,
    at_start_of_python,
    ends,
    is_healthy,
    many_requests,
    server_that_writes_to,
    serves,
)
from tests.service.stopped_lane import stopped_lane
from tests.service.store.test_trouble import on_small_disk, until, up
from warpcall_service.log_writer import MAX_LINES

pytestmark = pytest.mark.slow

DROPPED = "warpcall_log_lines_dropped_total"
LOGGED = (
    60  # calls, each with a line in the log; nothing is read, and a pipe is full from the beginning
)


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    made = FullPipe()
    yield made
    made.close()


def speak_to(server: Server, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=30)


@pytest.mark.parametrize("which", ["stderr", "stdout", "both"])
def test_an_output_that_nobody_reads_stops_nothing(
    which: str, pipe: FullPipe, sqlite: Database
) -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    stdout, stderr = (pipe.fd if which in (name, "both") else sink for name in ("stdout", "stderr"))
    with (
        server_that_writes_to(stdout, stderr, sqlite.settings) as server,
        speak_to(server) as http,
    ):
        serves(http, LOGGED)

        ends(server)
    os.close(sink)


def test_a_log_that_is_read_again_says_what_is_missing(pipe: FullPipe, sqlite: Database) -> None:
    with (
        server_that_writes_to(pipe.fd, pipe.fd, sqlite.settings) as server,
        speak_to(server) as http,
    ):
        many_requests(server, MAX_LINES + 1000)
        dropped = metrics(http)[DROPPED]
        assert 0 < dropped < MAX_LINES

        text = pipe.read(b"lines of the log were dropped")

        assert b'"path": "/v1/kernels/permute"' in text
        ends(server)


@pytest.mark.parametrize("how", ["closed", "full"])
def test_a_log_that_cannot_be_written_stops_nothing(
    how: str, pipe: FullPipe, sqlite: Database
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = full if how == "full" else pipe.fd
    if how == "closed":
        pipe.leave()
    with server_that_writes_to(sink, sink, sqlite.settings) as server, speak_to(server) as http:
        serves(http, LOGGED)
        assert metrics(http)[DROPPED] > 0

        ends(server)
    os.close(full)


# As a library or a compiler might that a lane or a job uses: more than any pipe holds.
PRINT = """
import os, sys
if {"warpcall_service.worker.main", "warpcall_bench.programs.job_main"} & {*sys.orig_argv[:4]}:
    for fd in (1, 2):
        for _ in range(1000):
            os.write(fd, b"this is no JSON" * 17 + b"\\n")
"""


def test_processes_that_print_do_not_wait_for_a_log_that_nobody_reads(
    pipe: FullPipe, sqlite: Database, tmp_path: Path
) -> None:
    settings = {**sqlite.settings, **at_start_of_python(tmp_path, PRINT)}
    with (
        server_that_writes_to(pipe.fd, pipe.fd, settings) as server,
        speak_to(server) as http,
    ):
        serves(http)
        assert ended(http, submit(http))["state"] == "succeeded"

        ends(server)


def test_what_processes_print_is_in_the_log_as_json(sqlite: Database, tmp_path: Path) -> None:
    with (
        running_server({**sqlite.settings, **at_start_of_python(tmp_path, PRINT)}) as server,
        speak_to(server) as http,
    ):
        assert ended(http, submit(http))["state"] == "succeeded"
        lines = logged(server)
        others = [line for line in log_of(server).splitlines() if not line.startswith("{")]

    messages = [line["message"] for line in lines if line.get("logger") == "warpcall.child"]
    for name in ("auto", "a job on cpu"):
        assert sum(text.startswith(f"{name} wrote: this is no JSON") for text in messages) > 0
    assert [line.partition(" ")[0] for line in others] == ["Warpcall"]


def test_a_full_disk_below_database_and_log_stops_nothing(sqlite: Database, tmp_path: Path) -> None:
    key = sqlite.key("alice", "admin")
    disk = tmp_path / "disk"
    disk.mkdir()
    file = Path(sqlite.settings["WARPCALL_DATA_DIR"]) / "warpcall.sqlite3"
    copied = f"cp {file} {{folder}}; exec >{{folder}}/log 2>&1;"
    sink, settings = os.open(os.devnull, os.O_WRONLY), {"WARPCALL_DATA_DIR": str(disk)}
    under = ("env", *on_small_disk(disk, copied))  # with `env` it is no fork, but started by this
    with (
        server_that_writes_to(sink, sink, settings, under) as server,
        speak_to(server, key) as http,
    ):
        filler = Path(f"/proc/{server.process.pid}/root{disk}/filler")
        with filler.open("wb", buffering=0) as rest, suppress(OSError):
            while rest.write(b"0" * 4096):
                pass
        serves(http, LOGGED)
        until(lambda: up(http) == (1, 0))
        assert metrics(http)[DROPPED] > 0

        ends(server)
    os.close(sink)


def test_a_lane_that_stands_still_holds_up_nothing_else(sqlite: Database) -> None:
    with running_server({**SETTINGS, **sqlite.settings}) as server, speak_to(server) as http:
        with stopped_lane(server):
            is_healthy(http)
            assert http.get("/v1/kernels").status_code == 200
        serves(http)

        with stopped_lane(server):
            ends(server)


STUCK_AT_THE_END = """
import asyncio, time
asyncio.Runner.close = lambda runner: time.sleep(3600)
"""


def test_the_kernel_ends_a_server_that_is_stuck_while_it_stops(
    sqlite: Database, tmp_path: Path
) -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    settings = {**sqlite.settings, **at_start_of_python(tmp_path, STUCK_AT_THE_END)}
    with server_that_writes_to(sink, sink, settings) as server:
        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(END_S) == -signal.SIGALRM
    os.close(sink)


# As if someone had set the machine's clock: that many seconds from the right time.
CLOCK = """
import pathlib, time
right, off = time.time, pathlib.Path({path!r})
time.time = lambda: right() + float(off.read_text())
"""


def test_a_clock_that_jumps_changes_nothing_but_the_time(sqlite: Database, tmp_path: Path) -> None:
    day_s = 86_400
    key, brief = sqlite.key("alice", "admin"), sqlite.key("bob", lifetime_s=day_s // 2)
    off = tmp_path / "off"

    def jump(seconds: int) -> None:
        (tmp_path / "next").write_text(str(seconds))
        (tmp_path / "next").rename(off)

    jump(0)
    settings = {**SETTINGS, **sqlite.settings}
    hook = at_start_of_python(tmp_path, CLOCK.format(path=str(off)))
    with (
        running_server({**settings, **hook}) as server,
        speak_to(server, key) as http,
        speak_to(server, brief) as short_lived,
    ):
        for seconds, status in ((0, 200), (day_s, 401), (-day_s, 200)):
            job = submit(http, fresh=True)
            jump(seconds)
            serves(http)
            assert short_lived.get("/v1/kernels").status_code == status
            assert ended(http, job)["state"] == "succeeded"

        ends(server)
