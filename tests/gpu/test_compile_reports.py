"""Compile reports, which need no GPU, say what CUDA says of the kernels that it has loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_registers_stack_and_occupancy_are_those_of_the_loaded_kernels() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.reported_kernels"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout)["pairs"]

    assert len(pairs) > 10
    for one in pairs:
        report, cuda = one["report"], one["cuda"]
        assert cuda is not None, one
        assert report["registers"] == cuda["registers"], one
        assert report["stack_bytes"] == 4 * cuda["spilled_words"], one
        assert report["resident_blocks"] == cuda["resident_blocks"], one
