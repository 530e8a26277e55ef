"""The log of the server's process: JSON, or short lines on a terminal. Dropped lines are counted."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from demo.server import COMMAND
from tests.forks import Forked

pytestmark = pytest.mark.slow

# All that Python itself writes to stderr where nobody catches it.
UNCAUGHT = """
import logging, threading, warnings
from warpcall_service import logs
logs.set_up(quiet=True)
class Finalized:
    def __del__(self):
        raise ValueError("in a finalizer")
def fail():
    raise ValueError("in a thread")
Finalized()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
warnings.warn("a warning")
logging.getLogger("warpcall").error("%d", "no number")
logging.getLogger("warpcall").error("x" * 100_000)
raise ValueError("in the main thread")
"""
# A file that may not become larger, as on a disk that is full, until it may.
FULL = """
import os, resource, sys
from warpcall_service.log_writer import LogWriter
def limit(nbytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
writer = LogWriter(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), "{} are missing".format)
writer.put("a")
writer.flush(60)
limit(8)
for line in ("bb", "cccccc", "d"):
    writer.put(line)
writer.flush(60)
limit(resource.RLIM_INFINITY)
writer.put("e")
writer.flush(60)
writer.put("f")
writer.flush(60)
print(writer.dropped)
"""


def test_what_nobody_catches_is_in_the_log_as_json() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, timeout=60, check=False
    )

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    finalizer, thread, warning, unformatted, long, main = lines
    assert done.returncode == 1
    assert "ValueError: in a finalizer" in finalizer["error"]
    assert "ValueError: in a thread" in thread["error"]
    assert "UserWarning: a warning" in warning["message"]
    assert "no message could be made at <string>:" in unformatted["message"]
    assert len(long["message"]) == 16_000
    assert "ValueError: in the main thread" in main["error"]


def test_lines_that_could_not_be_written_are_counted_and_those_after_them_are_whole(
    tmp_path: Path,
) -> None:
    file = tmp_path / "log"

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "2\n"
    assert file.read_text().splitlines() == ["a", "bb", "ccc", "e", "2 are missing", "f"]


@pytest.mark.parametrize("flags", [[], ["--json-log"]])
def test_on_a_terminal_lines_are_short_unless_json_is_asked_for(
    flags: list[str], tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    settings = {"WARPCALL_DATA_DIR": str(tmp_path), "WARPCALL_ARENA_BYTES": "16MiB"}
    process = Forked(
        [*COMMAND, "--port", "0", "--devices", "cpu", *flags],
        stdout=theirs,
        stderr=theirs,
        env=os.environ | settings,
    )
    os.close(theirs)
    try:
        started = shown_until("Ctrl-C stops the server", ours)
        url = re.findall(r"in a browser:  (http://[\d.:]+)/", started)[0]
        httpx.get(f"{url}/v1/%1b%5B2J")  # what a terminal would act on
        shown = started + shown_until("2J", ours)
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)

    lines = [line for line in shown.splitlines() if "2J" in line]
    assert "\x1b" not in shown
    assert f"warpcall ops --url {url}" in shown
    if flags:
        assert json.loads(lines[0])["status"] == 404
    else:
        short = r"\d\d:\d\d:\d\d 404 GET  /v1/\\u001b\[2J +\d+\.\d ms  0 B/\d+ B  local"
        assert re.fullmatch(short, lines[0])


def shown_until(wanted: str, terminal: int) -> str:
    """What a terminal shows until it has shown this and the rest of its line."""
    shown = b""
    while not re.search(re.escape(wanted).encode() + rb".*\n", shown):
        shown += os.read(terminal, 4096)
    return shown.decode()
