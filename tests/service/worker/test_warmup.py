"""What the log says while a worker compiles kernels ahead."""

from __future__ import annotations

import json
import subprocess
import sys

# A worker's log, and a compiler that needs no GPU and no time.
PROGRAM = """
from warpcall_kernels.compile import warm
from warpcall_service import logs
from warpcall_service.worker import warmup

def compile_all(on_progress):
    for done in range(1, 5):
        on_progress(done, 4)
    return warm.Warmed(4, 3, ("a kernel: it does not compile",))

logs.set_up_child()
warm.warm, warmup.LOG_S = compile_all, 0.0
warmup.warm_lane("cuda:0", lambda done, count: None)
"""


def test_a_workers_log_says_how_far_the_kernels_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )

    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in said] == ["info"] * 4 + ["error", "info"]
    assert said[1]["message"] == "cuda:0: 2 of 4 kernels are compiled, 0 s are left"
    assert said[-1]["message"].startswith("cuda:0 is warm: 4 kernels, 3 of them compiled now, in ")
