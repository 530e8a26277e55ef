"""A worker finds on its GPU what the process beside it has compiled without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import warpcall
from demo.server import running_server

# A worker that warms its lane with few calls, and then makes one of them.
PROGRAM = """
import json, threading
import torch, triton
from warpcall_kernels.compile import warm
from warpcall_service.worker import warmup

ended = threading.Event()
said = []
def report(what, done, count):
    said.append([what, done, count])
    if not what:
        ended.set()
major, minor = torch.cuda.get_device_capability()
warmup.LaneWarmer("cuda:0", major * 10 + minor, threading.Lock(), report).start()
ended.wait()
compiled = []
triton.knobs.compilation.listener = lambda **event: compiled.append(event["cache_hit"])
for op, case in warm.cases():
    op.function(**case.tensors("cuda"), **op.check_params(case.params))
torch.cuda.synchronize()
print(json.dumps([said[-2], compiled]))
"""
FEW = """
from warpcall_kernels.compile import warm

cases = warm.cases
warm.cases = lambda: [one for one in cases() if (one[0].name, one[1].name) == ("transpose-add", "odd")]
"""


def test_kernels_compiled_beside_the_worker_are_loaded_and_never_compiled_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FEW)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
        timeout=240,
    )

    assert done.stdout.strip() == '[["loading", 3, 3], []]', done.stderr


def test_the_answer_of_a_call_that_compiled_says_so(tmp_path: Path) -> None:
    settings = {
        "WARPCALL_DEVICES": "cuda:0",
        "WARPCALL_WARM": "false",
        "WARPCALL_ARENA_BYTES": "64MiB",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    x = torch.arange(7 * 11 * 3, dtype=torch.int32).reshape(7, 11, 3).numpy()
    with running_server(settings) as server, warpcall.Client(server.url) as gpu:
        first, second = (gpu.call("permute", {"x": x}, {"dims": [2, 0, 1]}) for _ in range(2))

    assert 0 < first.timing_ms["compile"] <= first.timing_ms["kernel"]
    assert "compile" not in second.timing_ms
