"""A server that notes how calls on the short way with large bodies were served."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from demo.server import Server
from tests.servers import running_server
from tests.service.http.test_quick import Caller, Floats

MIB = 1 << 20
LARGE = (512, 512)  # 1 MiB, as much as its output may have
SMALL = (16, 8)
TIMEOUT_S = 2
SETTINGS = {
    "WARPCALL_DEVICES": "cpu",
    "WARPCALL_BODY_TIMEOUT_S": str(TIMEOUT_S),
}
# Starts the server as on a machine with 8 CPUs, and notes in files: a letter for each call on the short
# way that begins and is not small; the bytes that the thread for responses wrote. If there is a file `slow`, this thread
# waits until it is gone.
COUNTED = """
import os, runpy, sys, time

os.sched_getaffinity = lambda pid: set(range(8))
from warpcall_service.calls.repeated_call import RepeatedCall
from warpcall_service.calls.send_thread import SendThread

start, write, path = RepeatedCall.start, SendThread._write, sys.argv[1]

def note(end, text):
    with open(path + end, "a") as file:
        file.write(text)

def counted(self, *args):
    start(self, *args)
    if self._is_watched:
        note("", "x")

def written(self, fd, head, data, report):
    while os.path.exists(path + "-slow"):
        time.sleep(0.01)
    def ended(nbytes):
        note("-written", f"{nbytes} ")
        report(nbytes)
    write(self, fd, head, data, ended)

RepeatedCall.start, SendThread._write = counted, written
sys.argv = ["warpcall-server"]
runpy.run_module("warpcall_service.cli", run_name="__main__")
"""


@contextmanager
def noting_server(path: Path) -> Iterator[Server]:
    """A server that notes in files that begin with `path`."""
    for end in ("", "-written"):
        path.with_name(path.name + end).touch()
    with running_server(SETTINGS, (sys.executable, "-c", COUNTED, str(path))) as started:
        yield started


def expected_calls(counts: Path) -> Iterator[list[int]]:
    """Yield how many calls of this kind a test expects; it is checked at the end."""
    before, expected = counts.stat().st_size, [1]
    yield expected
    assert counts.stat().st_size - before == expected[0], "they took the ordinary way"


def written(counts: Path) -> list[int]:
    """The bytes of each response that the thread wrote."""
    return [int(n) for n in beside(counts, "written").read_text().split()]


def beside(counts: Path, what: str) -> Path:
    """Another file of the server that notes."""
    return counts.with_name(f"{counts.name}-{what}")


def values(n: int, shape: tuple[int, int] = LARGE) -> Floats:
    return np.random.default_rng(n).random(shape, np.float32)


def prepared(server: Server, shape: tuple[int, int] = LARGE) -> Caller:
    """A connection that has made one call in the ordinary way."""
    caller = Caller(server)
    caller.call(values(0, shape))
    return caller


def is_clean(server: Server) -> bool:
    """Whether no call has memory or a place in the limits."""
    metrics, me = server.get("/metrics")[1], json.loads(server.get("/v1/me")[1])
    return (
        'warpcall_lane_arena_used{lane="cpu"} 0.0' in metrics and me["in_flight"]["requests"] == 1
    )
