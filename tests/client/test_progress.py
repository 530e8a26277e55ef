"""Progress bars: on a terminal for large transfers, nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest
import safetensors.numpy

from tests.client.scripted import ScriptedServer, Visit
from warpcall._jobs.progress import ratios

PROGRAM = """
import sys, numpy as np
from warpcall import Client
with Client(sys.argv[1], progress={"auto": None, "on": True, "off": False}[sys.argv[3]]) as gpu:
    gpu.run("permute", x=np.zeros(int(sys.argv[2]), np.uint8), dims=(0,))
"""
LARGE, SMALL = str(40 << 20), str(1 << 20)


def echo(visit: Visit) -> None:
    arrays = safetensors.numpy.load(visit.body())
    visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))


def shown(nbytes: str, wanted: str) -> str:
    """The text that a call writes to a terminal."""
    ours, theirs = pty.openpty()
    heard: list[bytes] = []

    def listen() -> None:
        try:
            while data := os.read(ours, 4096):
                heard.append(data)
        except OSError:  # the other end is closed
            return

    listener = threading.Thread(target=listen)
    listener.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with ScriptedServer(echo) as server:
        arguments = [sys.executable, "-c", PROGRAM, server.url, nbytes, wanted]
        subprocess.run(arguments, stderr=theirs, env=environment, check=True, timeout=60)
    os.close(theirs)
    listener.join(10)
    os.close(ours)
    return b"".join(heard).decode()


def test_a_large_transfer_shows_both_ways_on_a_terminal() -> None:
    text = shown(LARGE, "auto")

    assert "permute up" in text
    assert "permute down" in text


@pytest.mark.parametrize(("nbytes", "wanted"), [(SMALL, "auto"), (SMALL, "on"), (LARGE, "off")])
def test_a_small_or_silenced_transfer_shows_nothing(nbytes: str, wanted: str) -> None:
    assert shown(nbytes, wanted) == ""


def test_nothing_is_shown_where_stderr_is_no_terminal() -> None:
    with ScriptedServer(echo) as server:
        arguments = [sys.executable, "-c", PROGRAM, server.url, LARGE, "auto"]
        done = subprocess.run(arguments, capture_output=True, check=True, timeout=60)

    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("medians", "text"),
    [
        ({"warpcall": 19.25, "ann/mine": 19.67, "torch": 118.2}, ": ann/mine 1.02x, torch 6.14x"),
        ({"warpcall": 19.25}, ""),
        ({}, ""),
        (None, ""),
        ({"warpcall": 0, "torch": 1}, ""),
        ({"warpcall": 1.5, "torch": "much"}, ""),
        ([1, 2], ""),
    ],
)
def test_a_running_job_shows_ratios_to_its_first_implementation(medians: object, text: str) -> None:
    assert ratios({"phase": "rounds", "rounds": 60, "medians_us": medians}) == text
