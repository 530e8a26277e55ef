"""The process that makes one compile report."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.service.worker.processes import started
from warpcall_service.lanes.messages import frame, read_frame

pytestmark = pytest.mark.usefixtures("forked_programs")

HASHED_BYTES = 200 << 20  # less than what Triton reads of its own files for the keys of its cache
REQUEST: dict[str, Any] = {
    "op": "permute",
    "problem": None,
    "function": "",
    "tree": None,
    "case": {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}},
    "gpu": "sm_90",
    "limit_s": 100.0,
    "memory_bytes": 1 << 30,
}


@pytest.mark.slow
def test_a_report_ignores_that_the_server_has_triton_interpret_kernels(tmp_path: Path) -> None:
    answers = []
    for environment in ({}, {"TRITON_INTERPRET": "1"}):
        process, sock = started(
            "programs.explain", tmp_path, environment, stdout=subprocess.DEVNULL
        )
        with sock:
            sock.sendall(frame(REQUEST))
            answers.append(json.loads(read_frame(sock) or b"{}"))
        process.wait(30)

    assert len(answers[0]["kernels"]) == 1
    assert answers[1] == answers[0]


def test_a_report_does_not_read_all_of_triton(tmp_path: Path) -> None:
    process, sock = started("programs.explain", tmp_path, {}, stdout=subprocess.DEVNULL)
    with sock:
        sock.sendall(frame(REQUEST))
        answer = read_frame(sock)
        counts = Path(f"/proc/{process.pid}/io").read_text()
    process.wait(30)

    assert answer is not None
    assert json.loads(answer)["kernels"]
    read = re.search(r"rchar: (\d+)", counts)
    assert read is not None
    assert int(read[1]) < HASHED_BYTES
