"""Processes of the worker folder for tests: the check of an upload, and a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.service.job_requests import BRIEF
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.runs.messages import Task


def answer_of(module: str, request: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The answer of a program that answers one request; None if there was none.

    It must print nothing, end without an error, and delete its folder in `folder`.
    """
    process, sock = started(module, folder, {}, stdout=subprocess.PIPE)
    with sock:
        sock.sendall(frame(request))
        text = read_frame(sock)
        printed, _ = process.communicate(timeout=30)
    assert printed == b"", "what the source prints would be in the server's log"
    if text is None:
        return None
    assert process.returncode == 0
    assert list(folder.glob("warpcall-*")) == [], "the source was deleted"
    found: dict[str, Any] = json.loads(text)
    return found


def frames_of_job(task: Task, folder: Path) -> list[tuple[str, Any]]:
    """The kind and value of each frame that a job sends, up to the last one."""
    process, sock = started("job_main", folder, {**BRIEF, "TRITON_INTERPRET": "1"}, stdout=None)
    found: list[tuple[str, Any]] = []
    try:
        with sock:
            sock.sendall(frame(task))
            while (text := read_frame(sock)) is not None:
                found += json.loads(text).items()
                if found[-1][0] == "want":
                    sock.sendall(frame({"go": True}))
                elif found[-1][0] == "ended":
                    return found
    finally:
        assert process.wait(30) == 0
    raise AssertionError("the process ended before the job")


def started(
    module: str, folder: Path, environment: Mapping[str, str], stdout: int | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a program of the worker's folder; returns it with the socket on which it answers."""
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", f"warpcall_service.worker.{module}"]
        process = subprocess.Popen(
            [*command, f"--parent={os.getpid()}", f"--server-fd={theirs.fileno()}"],
            pass_fds=[theirs.fileno()],
            env={**kept, **environment, "TMPDIR": str(folder)},
            stdout=stdout,
            stderr=None if stdout is None else subprocess.STDOUT,
        )
    ours.settimeout(120)
    return process, ours
