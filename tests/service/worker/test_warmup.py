"""What a lane's worker compiles ahead: a process beside it does, and how that may end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waiting import lives, until

# A worker that warms "cuda:0", and that loads nothing, because there may be no GPU.
PROGRAM = """
import json, sys, threading
from warpcall_service import logs
from warpcall_service.worker import warmup

warmup.LOG_S = 0.0
logs.set_up_child()
ended = threading.Event()

def report(what, done, count):
    print(json.dumps([what, done, count]), flush=True)
    if not what:
        ended.set()

warmer = warmup.LaneWarmer("cuda:0", 90, threading.Lock(), report)
warmer._load = lambda: print(json.dumps(["loaded", 0, 0]), flush=True)
warmer.start()
ended.wait()
sys.stdin.readline()
"""
# The process that compiles has one call only.
FEW = """
from warpcall_kernels.compile import warm

cases = warm.cases
warm.cases = lambda: [one for one in cases() if (one[0].name, one[1].name) == ("transpose-add", "odd")]
"""
# It does not end by itself.
FOR_EVER = """
import time
from warpcall_kernels.compile import warm

warm.warm = lambda capability, on_progress: [on_progress(1, 4), time.sleep(600)]
"""


@contextmanager
def warming(
    folder: Path, changed: str, under: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A worker whose process that compiles begins with `changed`."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nif 'warpcall_service.worker.warmup' in ' '.join(sys.orig_argv):\n    exec({changed!r})"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = [str(folder), environment.get("PYTHONPATH", "")]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    worker = subprocess.Popen(
        [*under, sys.executable, "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with worker:
            yield worker
    finally:
        worker.kill()


def compiler_of(worker: subprocess.Popen[str]) -> psutil.Process:
    """The process that compiles, once it has begun to."""
    assert worker.stdout is not None
    while json.loads(worker.stdout.readline())[1] == 0:
        pass
    (child,) = psutil.Process(worker.pid).children()
    return child


@pytest.mark.slow
def test_a_process_beside_the_worker_compiles_and_then_the_worker_loads(tmp_path: Path) -> None:
    with warming(tmp_path, FEW) as worker:
        said, log = worker.communicate("\n", timeout=240)

    lines = [json.loads(line) for line in said.splitlines()]
    assert lines[0] == ["compiling", 0, 0]
    assert lines[-3:] == [["compiling", 3, 3], ["loaded", 0, 0], ["", 0, 0]]
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 3
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert "cuda:0: 3 of 3 kernels are compiled, 0 s are left" in messages
    assert any(message.startswith("compiled ahead: 3 kernels, 3 of them") for message in messages)


def test_the_worker_goes_on_if_the_process_that_compiles_is_killed(tmp_path: Path) -> None:
    with warming(tmp_path, FOR_EVER) as worker:
        child = compiler_of(worker)
        child.kill()

        said, log = worker.communicate("\n", timeout=60)

    assert [json.loads(line) for line in said.splitlines()] == [["", 0, 0]]
    assert "the process that compiles kernels ahead ended with signal 9" in log
    assert worker.returncode == 0


@pytest.mark.slow
def test_the_process_that_compiles_ends_with_the_worker_and_yields_to_all_others(
    tmp_path: Path,
) -> None:
    with warming(tmp_path, FOR_EVER) as worker:
        child = compiler_of(worker)
        priority = child.nice()

        worker.send_signal(signal.SIGKILL)

        assert priority == 19
        until(lambda: not lives(child))
