"""A job's process and an upload process for tests, started by a real reaper.

`job` plays the process of a job: it runs code that the test gives, which sees its `Reaper`. The
upload process is this module as a program: it greets, and runs code that it receives.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from warpcall_bench.runs import peer_child
from warpcall_bench.runs.messages import TAG_VARIABLE, ReaperReport, UploadLaunch
from warpcall_service.lanes.messages import frame, read_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warpcall_bench.settings import BenchSettings

ROOT = str(Path(__file__).parents[3])
UPLOAD = "tests.service.runs.upload_parts"
JOB = "tests.service.runs.upload_job"
ANSWER_S = 60.0
_kept = b""  # what a process holds while it waits


@dataclass
class Job:
    """A process that plays the job's process, and its reaper."""

    reaper: subprocess.Popen[bytes]
    server: socket.socket
    control: socket.socket
    log: Path

    def does(self, code: str, /, **values: Any) -> Any:
        """Run the body of a function in the job's process, and return what it returns.

        Raises:
            AssertionError: it raised, or the process ended.
        """
        self.server.sendall(frame({"code": code, "values": values}))
        text = read_frame(self.server)
        assert text is not None, f"the process ended: {self.log.read_text()}"
        kind, value = json.loads(text)
        assert kind == "done", value
        return value

    def report(self) -> ReaperReport:
        """How the job ended, once it has."""
        self.control.settimeout(ANSWER_S)
        text = self.control.recv(64 << 10)
        self.reaper.wait(ANSWER_S)
        return cast("ReaperReport", json.loads(text))


@contextmanager
def running_job(
    given: BenchSettings,
    folder: Path,
    *,
    memory_bytes: int = 8 << 30,
    environment: Mapping[str, str] | None = None,
    ahead: Sequence[str] = (),
) -> Iterator[Job]:
    """Start a reaper, and a process below it that plays the job's.

    Args:
        ahead: modules of upload processes that the reaper starts at once.
    """
    # Not for the processes that this module is: it takes 0.2 s of CPU time.
    from warpcall_bench.runs.sandbox import Sandbox

    os.environ["PYTHONPATH"], before = ROOT, os.environ.get("PYTHONPATH")
    try:
        sandbox = Sandbox(given).launch() if given.uploads == "sandboxed" else None
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    uploads: UploadLaunch = {
        "sandbox": sandbox,
        "without_gpu": sandbox,
        "environment": {**(environment or {})},
        "device": "cpu",
        "profiler": False,
        "threads": 1,
        "memory_bytes": memory_bytes,
    }
    log = folder / "log of uploads"
    control, theirs = socket.socketpair()
    server, of_job = socket.socketpair()
    server.settimeout(ANSWER_S)
    with theirs, of_job, log.open("wb") as output:
        options = {
            "parent": os.getpid(),
            "memory-bytes": memory_bytes,
            "module": JOB,
            "control-fd": theirs.fileno(),
            "server-fd": of_job.fileno(),
            "uploads": json.dumps(uploads),
            "log-fd": output.fileno(),
            "ahead": json.dumps(ahead),
        }
        command = [sys.executable, "-P", "-m", "warpcall_bench.runs.reaper"]
        reaper = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            pass_fds=[theirs.fileno(), of_job.fileno(), output.fileno()],
            env={**os.environ, "PYTHONPATH": ROOT, TAG_VARIABLE: f"test/{os.getpid()}"},
        )
    with control, server:
        try:
            yield Job(reaper, server, control, log)
        finally:
            control.close()
            try:
                reaper.wait(20)
            finally:
                reaper.kill()
                reaper.wait()


def import_ahead() -> None:
    """Be ready to wait. The thread is as those of OpenMP: it exists when the account is left."""
    global _kept
    _kept = b"x" * int(os.environ.get("AHEAD_BYTES", "0"))
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def main() -> None:
    """Be an upload process: greet, and run each code that comes, with one answer for each."""
    if os.environ.get("MUTE"):
        os._exit(5)
    args, sock = peer_child.start()
    with sock:
        space: dict[str, Any] = {"args": args}
        while (text := read_frame(sock)) is not None:
            request = json.loads(text)
            code = textwrap.indent(request["code"], "    ")
            exec(f"def attempt():\n{code}", space)  # noqa: S102
            sock.sendall(frame(space["attempt"]()))


if __name__ == "__main__":
    main()
