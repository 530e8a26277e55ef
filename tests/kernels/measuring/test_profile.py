"""Profiles of torch, as the process of a job makes them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

IMPORTED = """
import contextlib
import json
import sys

import pytest

from warpcall_kernels.measuring import make_case, trace

imported = []


@contextlib.contextmanager
def lease():
    before = set(sys.modules)
    yield
    imported.extend(sorted(set(sys.modules) - before))


case = make_case("permute", {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}})
events = json.loads(trace(case, "torch", sys.argv[1], most_bytes=1 << 20, lease=lease))["traceEvents"]
calls = {event["name"] for event in events if event["name"].startswith("call ")}
print(json.dumps([imported, sorted(calls)]))
"""


@pytest.mark.slow
def test_nothing_is_imported_while_the_device_is_kept(device: str) -> None:
    """A profiler's first use in a process imports much, which would delay the calls of others."""
    command = [sys.executable, "-c", IMPORTED, device]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    imported, calls = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    assert calls == [f"call {number} of torch" for number in range(3)]
