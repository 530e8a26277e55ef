"""The recorder of a verified upload is started in a sandbox that shows no GPU."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.service.runs.sandboxes import settings
from warpcall_bench.runs import sandboxed
from warpcall_bench.runs.messages import PROFILE_MODULE, RECORD_MODULE, Task, Upload, UploadLaunch
from warpcall_bench.runs.peers import UPLOAD_MODULE
from warpcall_bench.runs.run_processes import upload_launch
from warpcall_bench.runs.upload_processes import UploadProcesses
from warpcall_service.lanes.messages import Hello

PLAIN: Upload = {"name": "ann/plain", "op": "permute", "function": "permute", "source": ""}
VERIFIED: Upload = {
    **PLAIN,
    "name": "ann/fast",
    "verified": True,
    "language": "python",
    "launches": None,
}
LANE: Hello = {"minor": 3, "fingerprint": {"uuid": "abc"}}


def launch_of(folder: Path, *uploads: Upload) -> UploadLaunch:
    """How the upload processes of a job on a GPU are started."""
    task: Task = {
        "device": "cuda:1",
        "modules": {},
        "uploads": [*uploads],
        "problem": None,
        "sandboxed": True,
        "op": "permute",
        "implementations": [one["name"] for one in uploads],
        "precision": "quick",
        "seed": 0,
        "cases": [],
        "memory_bytes": 1 << 30,
        "threads": 1,
    }
    found = upload_launch(task, LANE, settings(folder / "data"))
    assert found is not None
    return found


def started(
    launch: UploadLaunch, module: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Mapping[str, Any], list[str], bool]:
    """The sandbox, the options and the right to share a GPU with which a module is started."""
    found: list[Any] = []

    def start(*args: Any, **options: Any) -> None:
        found.append((args[0], args[2], options["gpu"]))
        raise sandboxed.CannotStart("it was asked how")

    monkeypatch.setattr(sandboxed, "start", start)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(10)
        request = json.dumps({"start": 0, "module": module}).encode()
        socket.send_fds(ours, [request], [theirs.fileno()])
        assert UploadProcesses(theirs, launch, 2).receive()
        answer = json.loads(ours.recv(4096))
    assert answer["trouble"] == "it was asked how"
    ((sandbox, given, gpu),) = found
    return sandbox, given, gpu


def variables(sandbox: Mapping[str, Any]) -> dict[str, str]:
    """The environment in a sandbox."""
    parts = sandbox["arguments"]
    return {parts[i + 1]: parts[i + 2] for i, part in enumerate(parts) if part == "--setenv"}


def test_a_recorder_sees_no_gpu_and_the_process_that_makes_calls_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_of(tmp_path, PLAIN, VERIFIED)

    sandbox, options, gpu = started(launch, RECORD_MODULE, monkeypatch)

    assert not any("nvidia" in argument for argument in sandbox["arguments"])
    assert variables(sandbox)["CUDA_VISIBLE_DEVICES"] == ""
    assert "--device=cpu" in options
    assert not gpu
    for module in (UPLOAD_MODULE, PROFILE_MODULE):
        sandbox, options, gpu = started(launch, module, monkeypatch)
        assert "/dev/nvidia3" in sandbox["arguments"]
        assert variables(sandbox)["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
        assert "--device=cuda:0" in options
        assert gpu


def test_a_job_without_verified_uploads_starts_no_recorder(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, PLAIN)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    with ours, theirs:
        ours.settimeout(10)
        request = json.dumps({"start": 0, "module": RECORD_MODULE}).encode()
        socket.send_fds(ours, [request], [theirs.fileno()])
        UploadProcesses(theirs, launch, 2).receive()
        answer = json.loads(ours.recv(4096))

    assert launch["without_gpu"] is None
    assert answer["trouble"] == "the job was started without verified uploads"
