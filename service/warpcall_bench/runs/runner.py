"""One run of a job: starts its processes, watches them, and ends all of them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warpcall.jobs import ExitClass
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.events import (
    CaseMeasured,
    EnvironmentKnown,
    OddCasesChecked,
    Progress,
    RunEvent,
    StateChanged,
)
from warpcall_bench.runs.frames import FrameReader, FrameRefused
from warpcall_bench.runs.messages import JobTask, ReaperReport, Task
from warpcall_bench.runs.run_processes import RunProcesses, Start
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.messages import LENGTH, Hello, frame
from warpcall_service.processes.spawn import ChildProcess, signal_name

WATCH_POLL_S = 0.1
UPLOAD_END_S = 5.0  # to end an upload's process whose call has exceeded its deadline
PAUSE_S = 1.0  # if a check comes so late, the server itself stood still
# The time in which a reaper ends the job, and some for its report.
REAPER_REPORT_S = process_tree.TERMINATE_S + process_tree.KILL_S + 3.0
ENDED_S = 10.0  # that the job's process may take to end after it has said so
LAST_MESSAGES_S = 5.0  # to read what is in the socket after all processes have ended

OnEvent = Callable[[RunEvent], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        exit_class: "interrupted" if neither the job nor this server ended it on purpose.
        left: ids of processes that could not be ended.
        device_s: seconds for which it had the device.
        device_wait_s: seconds for which it waited for the device, between its blocks as well.
        compile_s: seconds for which the implementations of its measured cases were compiled.
        setup_s: seconds of the setups of uploads in its measured cases.
    """

    exit_class: ExitClass
    detail: str
    left: tuple[int, ...]
    device_s: float
    took_s: float
    device_wait_s: float = 0.0
    compile_s: float = 0.0
    setup_s: float = 0.0


class Run:
    """The processes of one run, and the server's end of their socket.

    Args:
        tag: identifies the processes, in their environment.
        lane: what the lane's worker found out about the device.
        lease: the lane's lease of the device.
        on_event: called with each event of the run.
        take: returns processes that have waited for such a run, or None.
        waits_for: the run on the same device that was paused for this one. This one gets the device
            once that one stands still.

    Attributes:
        stands_still: set while the run is paused and waits for the device, and after its end.
        on_device_time: called with the seconds for which the job had the device, each time when it
            returns it.
    """

    def __init__(
        self,
        task: Task,
        tag: str,
        lane: Hello,
        lease: DeviceLease,
        settings: BenchSettings,
        on_event: OnEvent,
        take: Callable[[], RunProcesses | None] = lambda: None,
        waits_for: Run | None = None,
    ) -> None:
        self._task = task
        self._tag = tag
        self._lane = lane
        self._lease = lease
        self._settings = settings
        self._on_event = on_event
        self._take = take
        self._waits_for = waits_for
        self.stands_still = asyncio.Event()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._stop_reason: tuple[ExitClass, str] | None = None  # set by `stop`
        self._reported_end: tuple[ExitClass, str] | None = None  # reported by the job's process
        self._stopping = asyncio.Event()
        # The last progress is the last frame that cannot be sent without end. A run reports the same
        # phase of a case again and again, so only the first such report counts.
        self._began = self._last_progress = time.monotonic()
        self._phases: set[tuple[int, str, str | None]] = set()  # see `_is_new_phase`
        self._ended_at: float | None = None  # when the job's process said that it ends
        self._ready = False
        self._waiting_for_device = self._has_device = False
        self._device_s = self._device_wait_s = self._compile_s = self._setup_s = 0.0
        self.on_device_time: Callable[[float], None] = lambda seconds: None

    def stop(self, exit_class: ExitClass, detail: str) -> None:
        """End the run; the first reason counts."""
        if self._stop_reason is None:
            self._stop_reason = exit_class, detail
        self._stopping.set()

    def pause(self) -> None:
        """Give the run the device no more until `resume`. Its processes keep what they have."""
        self._may_go_on.clear()

    def resume(self) -> None:
        """Give the run the device again."""
        self._may_go_on.set()

    async def run(self) -> Outcome:
        """Measure until the job is done or must be ended.

        When this returns, its processes have ended and the lane has the device.

        Raises:
            CannotStart: the sandbox cannot be used.
            OSError: no process can be started.
        """
        processes = self._take()
        if processes is None:
            how = Start.of(self._task, self._lane, self._settings)
            processes = RunProcesses(how, self._tag)
        try:
            return await self._supervise(processes.reaper, processes.tag)
        finally:
            processes.close()

    async def _supervise(self, reaper: ChildProcess, tag: str) -> Outcome:
        reading_messages = asyncio.create_task(self._read_messages(reaper.sockets["server"]))
        watching = asyncio.create_task(self._watch())
        try:
            report = await self._wait_for_reaper(reaper)
            if report is None:  # the reaper was killed, and what it leaves is known by the tag only
                left = await asyncio.to_thread(process_tree.kill_tagged, tag)
            else:
                left = await asyncio.to_thread(process_tree.kill_left, report["left"])
            await asyncio.wait((reading_messages,), timeout=LAST_MESSAGES_S)
        finally:
            watching.cancel()
            reading_messages.cancel()
            await asyncio.wait((reading_messages, watching))
            self._release()
            self.stands_still.set()
        exit_class, detail = self._how_it_ended(report)
        took_s = time.monotonic() - self._began
        times = self._device_s, took_s, self._device_wait_s, self._compile_s, self._setup_s
        return Outcome(exit_class, detail, tuple(sorted(left)), *times)

    async def _wait_for_reaper(self, reaper: ChildProcess) -> ReaperReport | None:
        """Wait until the reaper and the job have ended. Returns None if the reaper was killed."""
        reader, writer = await asyncio.open_unix_connection(sock=reaper.sockets["control"])
        reading = asyncio.create_task(_read_to_end(reader))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                writer.write(b"stop\n")
                await asyncio.wait((reading,), timeout=REAPER_REPORT_S)
            text = reading.result() if reading.done() else b""
        finally:
            stopping.cancel()
            reading.cancel()
            writer.close()
            reaper.kill()  # it does nothing after its report
            await reaper.wait()
        report: ReaperReport | None = json.loads(text) if text else None
        return report

    def _how_it_ended(self, report: ReaperReport | None) -> tuple[ExitClass, str]:
        if self._stop_reason is not None:
            return self._stop_reason
        if report is not None and report["trouble"]:
            return "killed", f"its process could not be started: {report['trouble']}"
        if report is not None and report["over_memory"]:
            limit = self._task["memory_bytes"]
            return "oom", f"its processes together took more than {limit} bytes of memory"
        if self._reported_end is not None:
            return self._reported_end
        # The job's process ends itself by neither. SIGTERM comes to all processes of the server.
        if report is None or report["status"] in (-signal.SIGKILL, -signal.SIGTERM):
            return "interrupted", "its process was killed"
        status = report["status"]
        how = f"by {signal_name(-status)}" if status < 0 else f"with exit status {status}"
        return "killed", f"its process ended {how} before it was done"

    # Messages of the job's process

    async def _read_messages(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 20)
        frames = FrameReader(self._task, reader)
        try:
            contents = self._task.pop("contents", {})  # needed no more when they are sent
            task: JobTask = {
                **self._task,
                "call_s": self._settings.upload_call_s,
                "compile_s": self._settings.upload_compile_s,
                "behind": [*contents],
            }
            writer.write(frame(task))
            for content in contents.values():
                writer.write(LENGTH.pack(len(content)) + content)
                await writer.drain()
            while True:
                kind, value = await frames.read()
                if kind != "progress" or self._is_new_phase(value):
                    self._last_progress = time.monotonic()
                await self._on_message(kind, value, writer)
        except FrameRefused as refused:
            self.stop("invalid", f"its process sent {refused}")
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has ended; the reaper reports how
        finally:
            writer.close()

    def _is_new_phase(self, progress: Mapping[str, Any]) -> bool:
        before = len(self._phases)
        # In a race, implementations are prepared one after the other, also after the first rounds.
        name = progress.get("implementation") if self._task.get("race") else None
        self._phases.add((progress["position"], progress["phase"], name))
        return len(self._phases) > before

    async def _on_message(self, kind: str, value: Any, writer: asyncio.StreamWriter) -> None:
        match kind:
            case "hello":
                self._ready = True
                self._on_event(
                    EnvironmentKnown(value["fingerprint"], value["environment"], value["sources"])
                )
            case "want":
                self._on_event(StateChanged("waiting_gpu"))
                self._waiting_for_device = True
                await self._wait_for_turn(writer)
                asked = time.monotonic()
                await self._lease.acquire()
                self._waiting_for_device, self._has_device = False, True
                self._last_progress = time.monotonic()
                self._device_wait_s += self._last_progress - asked
                self._on_event(StateChanged("running"))
                writer.write(frame({"go": True, "block_s": self._lease.block_s}))
                await writer.drain()  # a process that only requests gets no further answers
            case "release":
                self._release()
            case "odd":
                self._on_event(OddCasesChecked(value["implementation"], value["found"]))
            case "progress":
                self._on_event(Progress(value))
            case "result":
                self._compile_s += value["case"].get("compile_s", 0.0)
                self._setup_s += value["case"].get("setup_s", 0.0)
                self._on_event(CaseMeasured(value["position"], value["case"]))
            case "profile" | "printed":
                if value is not None:
                    self._on_event(value)
            case "ended":
                self._reported_end = value["class"], value["detail"]
                self._ended_at = time.monotonic()
                self._release()
                self._on_event(StateChanged("finalizing"))

    async def _wait_for_turn(self, writer: asyncio.StreamWriter) -> None:
        """Wait while the run is paused, and for the run that is paused for this one."""
        if self._waits_for is not None:
            await self._waits_for.stands_still.wait()
        while not self._may_go_on.is_set():
            writer.write(frame({"go": False}))
            await writer.drain()
            began = time.monotonic()
            self.stands_still.set()
            try:
                await self._may_go_on.wait()
            finally:
                self.stands_still.clear()
                self._began += time.monotonic() - began

    def _release(self) -> None:
        """Return the device, if this run has it: another one may have it while this one is paused."""
        if self._has_device and self._lease.since is not None:
            seconds = time.monotonic() - self._lease.since
            self._device_s += seconds
            self.on_device_time(seconds)
            self._lease.release()
        self._has_device = False

    async def _watch(self) -> None:
        """End the run if one of its phases takes too long: its start, its time without progress, a
        block on the device, its end, or all together."""
        settings = self._settings
        block_s = settings.job_block_s
        if self._task["uploads"] or self._task["problem"]:  # a call that hangs is ended before
            block_s = max(block_s, settings.upload_call_s + UPLOAD_END_S)
        now = resumed = time.monotonic()
        while True:
            before = now
            await asyncio.sleep(WATCH_POLL_S)
            now = time.monotonic()
            if (pause_s := now - before - WATCH_POLL_S) > PAUSE_S:
                # The server stood still, and perhaps the job with it, so the time does not count.
                self._began += pause_s
                self._last_progress = resumed = now
            quiet_s = 0.0 if self._waiting_for_device else now - self._last_progress
            since = self._lease.since if self._has_device else None
            held_s = 0.0 if since is None else now - max(since, resumed)
            if self._ended_at is not None:
                if now - self._ended_at > ENDED_S:
                    self._stopping.set()  # what it has said about its end counts
            elif held_s > block_s:
                self.stop("timeout", f"it kept the device for more than {block_s:g} s at a time")
            elif not self._ready:
                if now - self._began > settings.start_timeout_s:
                    self.stop("timeout", f"it did not start within {settings.start_timeout_s:g} s")
            elif quiet_s > settings.job_stall_s:
                self.stop("timeout", f"it made no progress for {settings.job_stall_s:g} s")
            elif now - self._began > settings.job_wall_s and not self.stands_still.is_set():
                self.stop("timeout", f"it was not done within {settings.job_wall_s:g} s")


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side has ended; nothing if it ended without reading everything."""
    try:
        return await reader.read()
    except OSError:
        return b""
