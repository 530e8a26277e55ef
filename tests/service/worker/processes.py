"""Processes of the worker folder for tests: the check of an upload, and a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.service.job_requests import BRIEF
from warpcall_bench.runs.messages import JobTask, Task, UploadLaunch
from warpcall_service.lanes.messages import frame, read_frame


def answer_of(module: str, request: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The answer of a program that answers one request; None if there was none.

    It must print nothing, end without an error, and delete its folder in `folder`.
    """
    process, sock = started(f"programs.{module}", folder, {}, stdout=subprocess.PIPE)
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
    """The kind and value of each frame that a job sends, up to the last one.

    Its uploads run without the sandbox.
    """
    launch: UploadLaunch = {
        "sandbox": None,
        "without_gpu": None,
        "environment": {"TRITON_INTERPRET": "1"},
        "device": task["device"],
        "profiler": False,
        "threads": task["threads"],
        "memory_bytes": task["memory_bytes"],
    }
    of_job: JobTask = {**task, "call_s": 10.0, "compile_s": 60.0, "behind": []}
    control, theirs = socket.socketpair()
    found: list[tuple[str, Any]] = []
    with control, theirs:
        options = (
            "--module=warpcall_bench.programs.job_main",
            f"--memory-bytes={task['memory_bytes']}",
            f"--control-fd={theirs.fileno()}",
            f"--uploads={json.dumps(launch)}",
            "--log-fd=2",
        )
        process, sock = started("runs.reaper", folder, BRIEF, None, options, [theirs.fileno()])
        theirs.close()
        try:
            with sock:
                sock.sendall(frame(of_job))
                while (text := read_frame(sock)) is not None:
                    found += json.loads(text).items()
                    if found[-1][0] == "want":
                        sock.sendall(frame({"go": True}))
                    elif found[-1][0] == "ended":
                        return found
        finally:
            report = json.loads(control.recv(64 << 10))
            assert process.wait(30) == 0
            assert (report["status"], report["left"], report["trouble"]) == (0, [], "")
    raise AssertionError("the process ended before the job")


def started(
    module: str,
    folder: Path,
    environment: Mapping[str, str],
    stdout: int | None,
    options: Sequence[str] = (),
    fds: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a program of the platform; returns it with the socket on which it answers."""
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", f"warpcall_bench.{module}"]
        process = subprocess.Popen(
            [*command, f"--parent={os.getpid()}", f"--server-fd={theirs.fileno()}", *options],
            pass_fds=[theirs.fileno(), *fds],
            env={**kept, **environment, "TMPDIR": str(folder)},
            stdout=stdout,
            stderr=None if stdout is None else subprocess.STDOUT,
        )
    ours.settimeout(120)
    return process, ours
