"""The process that checks the launch plans of a verification trusts no part of them."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.verifications import sources
from tests.service.worker.processes import started
from warpcall_bench.runs.messages import VerifyRequest, plan_check_body
from warpcall_service.lanes.messages import LENGTH, frame, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]
REQUEST: VerifyRequest = {
    "op": "permute",
    "problem": None,
    "function": "permute",
    "source": sources.PERMUTE,
    "language": "python",
    "launches": None,
    "cases": [{"shape": [4, 8, 16], "dtype": "F32", "params": {"dims": [2, 1, 0]}}],
    "gpu": "sm_90",
    "limit_s": 100.0,
}


def answer_of(module: str, body: bytes, folder: Path) -> bytes:
    environment = {"TRITON_INTERPRET": "1"}  # as a server without a GPU has it
    process, sock = started(f"programs.{module}", folder, environment, stdout=subprocess.DEVNULL)
    with sock:
        sock.sendall(body)
        found = read_frame(sock)
    process.wait(60)
    assert found is not None
    return found


def changed(plans: Any, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The answer of a recorder whose first plan was changed."""
    said = copy.deepcopy(plans)
    change(said["cases"][0]["plan"])
    return json.dumps(said).encode()


def test_a_plan_is_described_only_if_a_job_would_carry_it_out(tmp_path: Path) -> None:
    plans = json.loads(answer_of("verify", frame(REQUEST), tmp_path))
    launch = plans["cases"][0]["plan"]["steps"][0][0]["actions"][0]
    answers = [
        changed(plans, lambda plan: None),
        changed(plans, lambda plan: plan.update(gpu="sm_100")),
        changed(plans, lambda plan: plan["outputs"].__setitem__(0, [0, 0])),
        changed(plans, lambda plan: plan["kernels"][0].update(cubin="AAAA")),
        changed(plans, lambda plan: plan["kernels"][0]["parameters"].append("i32")),
        changed(plans, lambda plan: plan["kernels"][0].update(name="other")),
        changed(plans, lambda plan: plan.update(steps=plan["steps"] * 5)),
    ]

    found = []
    for answer in answers:
        body = plan_check_body(REQUEST, answer)
        (case,) = json.loads(answer_of("plan_check", LENGTH.pack(len(body)) + body, tmp_path))[
            "cases"
        ]
        found.append((case["reason"], case["steps"]))

    reason, steps = found[0]
    assert reason == ""
    assert steps[0]["choices"][0]["actions"][0]["grid"] == launch["grid"]
    reasons = [reason for reason, steps in found[1:] if not steps]
    assert len(reasons) == 6
    assert reasons[0] == "its launch plan is for sm_100, not for sm_90"
    assert reasons[1] == "its launch plan is refused: an output lies in an input"
    assert reasons[2].startswith("its launch plan is refused: a cubin ")
    assert "arguments" in reasons[3]
    assert reasons[4] == "its kernels are refused: other: its file has no kernel of this name"
    assert reasons[5].startswith("its launch plan is refused: it launches 10 kernels")
