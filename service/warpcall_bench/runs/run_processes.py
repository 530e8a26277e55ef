"""The processes of a run: how they are started, also before there is a job for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
from dataclasses import dataclass

from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import (
    RECORD_MODULE,
    TAG_VARIABLE,
    Task,
    UploadLaunch,
    odd_at_once,
    profiles_of,
)
from warpcall_bench.runs.one_shot import MAX_LOG_BYTES, STOP_S
from warpcall_bench.runs.peers import UPLOAD_MODULE
from warpcall_bench.runs.sandbox import Sandbox, gpu_of
from warpcall_bench.runs.waiting import Waiting
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.messages import Hello
from warpcall_service.processes.child_log import ChildLog
from warpcall_service.processes.spawn import ChildProcess, torch_environment

REAPER_MODULE = "warpcall_bench.runs.reaper"
JOB_MODULE = "warpcall_bench.programs.job_main"
MOST_WAITING = 5  # upload processes that wait for one job; each holds some 200 MB

log = logging.getLogger("warpcall.jobs")


@dataclass(frozen=True, slots=True)
class Start:
    """How the processes of a run are started. It does not say what they measure.

    Attributes:
        device: of the lane.
        memory_bytes: as in `Task`.
        uploads: the `UploadLaunch` as JSON; "null" for a job that runs no code of users.
        ahead: modules of the upload processes that are started at once, in this order.
    """

    device: str
    memory_bytes: int
    uploads: str
    ahead: tuple[str, ...]

    @classmethod
    def of(cls, task: Task, lane: Hello, settings: BenchSettings) -> Start:
        """How those of a job are started.

        Raises:
            CannotStart: the sandbox cannot be used.
        """
        uploads = json.dumps(upload_launch(task, lane, settings))
        return cls(task["device"], task["memory_bytes"], uploads, first_processes(task))


class RunProcesses:
    """The reaper of a run and the process below it, which imports torch and then waits for its task.

    Args:
        tag: identifies the processes, in their environment.

    Attributes:
        reaper, tag: of the run.

    Raises:
        OSError: they cannot be started.
    """

    def __init__(self, how: Start, tag: str) -> None:
        self.tag = tag
        self._log = ChildLog(f"uploaded code of a job on {how.device}", MAX_LOG_BYTES)
        options = {
            "module": JOB_MODULE,
            "memory-bytes": how.memory_bytes,
            "uploads": how.uploads,
            "ahead": json.dumps(how.ahead),
        }
        try:
            try:
                self.reaper = ChildProcess(
                    REAPER_MODULE,
                    f"a job on {how.device}",
                    options,
                    {"control": socket.SOCK_STREAM, "server": socket.SOCK_STREAM},
                    fds={"log": self._log.fd},
                    environment={TAG_VARIABLE: tag, **torch_environment()},
                )
            finally:
                self._log.started()
        except OSError:
            self._log.close()
            raise

    @property
    def runs(self) -> bool:
        """Whether the reaper, and so the job's process, has not ended."""
        return self.reaper.poll() is None

    async def end(self) -> None:
        """End processes that have not been used."""
        self.reaper.sockets["control"].close()  # the reaper then ends all of them
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.reaper.wait()
        self.reaper.kill()
        await self.reaper.wait()
        if self.reaper.poll() != 0:  # it was killed, and could not end all
            await asyncio.to_thread(process_tree.kill_tagged, self.tag)
        self.close()

    def close(self) -> None:
        """Close the sockets and the log, once all processes have ended."""
        self.reaper.close()
        self._log.close()


class WaitingRuns:
    """Processes that wait for the next job of each lane. They touch no GPU before there is one."""

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._lanes: dict[str, Waiting[RunProcesses]] = {}

    def take(self, lane: str, how: Start) -> RunProcesses | None:
        """Those that wait on a lane, if they were started like that."""
        return self._of(lane).take(_bounded(how))

    def start(self, lane: str, how: Start, tag: str) -> None:
        """Start those of the next job, which will probably be like one that was started so."""
        waiting, how = self._of(lane), _bounded(how)
        if not waiting.wants_one:
            return
        try:
            waiting.put(RunProcesses(how, f"{tag}waiting-{secrets.token_hex(4)}"), how)
        except OSError as error:
            log.warning("no processes wait for the next job on %s: %s", lane, error)

    def end(self, lane: str) -> None:
        """End those that wait on a lane."""
        self._of(lane).expire()

    async def stop(self) -> None:
        """End all, and start none any more."""
        for waiting in self._lanes.values():
            await waiting.stop()

    def _of(self, lane: str) -> Waiting[RunProcesses]:
        wait_s = self._settings.waiting_process_s
        return self._lanes.setdefault(lane, Waiting[RunProcesses](wait_s))


def upload_launch(task: Task, lane: Hello, settings: BenchSettings) -> UploadLaunch | None:
    """How a job's upload processes are started; None if it runs no code of users.

    Raises:
        CannotStart: the sandbox cannot be used.
    """
    if not (task["uploads"] or task["problem"]):
        return None
    sandbox, without_gpu, device = None, None, task["device"]
    profilers = [one["program"] for one in profiles_of(task) if one["program"]]
    if task["sandboxed"]:
        gpu = gpu_of(device, lane)
        sandbox = Sandbox(settings).launch(gpu=gpu, profilers=profilers)
        if any(upload.get("verified") for upload in task["uploads"]):
            without_gpu = Sandbox(settings).launch()
        device = "cpu" if gpu is None else "cuda:0"  # the only one that it sees
    return {
        "sandbox": sandbox,
        "without_gpu": without_gpu,
        # Triton interprets kernels where there is no GPU. It reads it when it is imported.
        "environment": {"TRITON_INTERPRET": "1"} if device == "cpu" else {},
        "device": device,
        "profiler": bool(profilers),
        "threads": task["threads"],
        "memory_bytes": task["memory_bytes"],
    }


def first_processes(task: Task) -> tuple[str, ...]:
    """Modules of the upload processes that the job's process requests before it measures."""
    found = [UPLOAD_MODULE] if task["problem"] else []
    uploads, on_gpu = task["uploads"], task["device"] != "cpu"
    odd = [
        one
        for one in uploads
        if one["name"] in task.get("odd", ()) and (on_gpu or not one.get("verified"))
    ]
    for one in (*odd[: odd_at_once()], *uploads[: 1 if task.get("race") else None]):
        verified = one.get("verified", False)
        found += [RECORD_MODULE] if verified else []
        found += [UPLOAD_MODULE] if on_gpu or not verified else []
    # A kernel for one dtype may well end its process in an odd case: the next one is there then.
    return (*found, *([UPLOAD_MODULE] if on_gpu and len(odd) == 1 else []))


def _bounded(how: Start) -> Start:
    return Start(how.device, how.memory_bytes, how.uploads, how.ahead[:MOST_WAITING])
