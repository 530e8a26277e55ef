"""A program holds only the tensors that it still needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load

from tests.app.calls.test_programs import ADD, send, step
from tests.e2e.test_survives import lane_of
from tests.servers import Server, running_server


def test_what_is_dead_is_freed_before_the_end() -> None:
    n = 1 << 10
    steps: list[dict[str, Any]] = [step(ADD, name="s0", inputs={"a": "x", "b": "x"})]
    steps += [
        step(ADD, name=f"s{i}", inputs={"a": f"s{i - 1}", "b": f"s{i - 1}"}) for i in range(1, 60)
    ]
    program = {"steps": steps, "outputs": {"y": "s59"}}

    settings = {"WARPCALL_ARENA_BYTES": "16MiB"}
    with running_server(settings) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        send(http, program, {"x": np.zeros((4, 4), np.float32)})
        before = lane_peak_bytes(server)
        answer = send(http, program, {"x": np.zeros((n, n), np.float32)})
        after = lane_peak_bytes(server)

    assert load(answer.content)["y"].shape == (n, n)
    assert after - before < 15 * 4 * n * n, "not only the few of 60 tensors that are needed"


def lane_peak_bytes(server: Server) -> int:
    """The most memory that the lane ever had."""
    status = Path(f"/proc/{lane_of(server).pid}/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) << 10
