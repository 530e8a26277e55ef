"""A scratch run: one command of a user in the sandbox, with the device to itself for a bounded time.

`scratch_messages.py` describes what its process sends. That shares the sandbox with the command, so each
message is checked as if the command had sent it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from warpcall.jobs import ExitClass
from warpcall_bench.runs.events import CommandEnded, FileFetched, OutputWritten, StateChanged
from warpcall_bench.runs.frames import BYTE_S, FRAME_S, LOOP_BURST_S, LOOP_SHARE
from warpcall_bench.runs.messages import TAG_VARIABLE, ReaperReport, ScratchTask
from warpcall_bench.runs.one_shot import MAX_LOG_BYTES
from warpcall_bench.runs.results import Strict
from warpcall_bench.runs.run_processes import REAPER_MODULE
from warpcall_bench.runs.runner import ENDED_S, WATCH_POLL_S, Outcome, Run
from warpcall_bench.runs.sandbox import Sandbox, gpu_of
from warpcall_bench.runs.scratch_messages import (
    AT,
    DONE,
    ENDED,
    FILE,
    MAX_HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    MOST_FETCHED,
    MOST_FETCHED_BYTES,
    OUTPUT,
    PATH,
    READY,
    SIGNALLED,
    TERM_S,
    ScratchOrder,
)
from warpcall_service.admission import TokenBucket
from warpcall_service.lanes.messages import LENGTH, frame
from warpcall_service.processes.spawn import (
    ChildProcess,
    refuse_descriptors,
    signal_name,
    torch_environment,
)
from warpcall_service.text import printable

SCRATCH_MODULE = "warpcall_bench.programs.scratch_main"
END_S = 30.0  # to end a command that has reached its limit, and to send its files
# Output counts as so much of the event loop's time, of which a run may take a tenth: more than 5 messages a
# second would write to the database without end.
OUTPUT_S = 0.02
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # of artefacts
MAX_ERROR_CHARS = 500


T = TypeVar("T")


class CommandExit(Strict):
    """How a command ended: its exit status as shells count it, and whether it had reached its limit."""

    status: Annotated[int, Field(ge=0, le=255)]
    timed_out: bool


class _FileHead(Strict):
    path: Annotated[str, StringConstraints(pattern=rf"^{PATH}$", max_length=200)]
    error: Annotated[str, Field(max_length=MAX_ERROR_CHARS)]


class WrongMessage(Exception):
    """A message that an honest process does not send. The text says what it was."""


class ScratchRun(Run):
    """The processes of a scratch run, and the server's end of their socket. It has the methods of `Run`."""

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        self._until: float | None = None  # when it must have ended, from its start on
        self._ended: CommandExit | None = None
        self._written = 0  # bytes of the output so far
        self._names: dict[
            str, str
        ] = {}  # paths of files that came, by the names of their artefacts
        self._fetched_bytes = 0
        self._loop_time = TokenBucket(LOOP_BURST_S, 1 / LOOP_SHARE, time.monotonic())

    async def run(self) -> Outcome:
        """Run the command until it has ended or must be ended. It raises as `Run.run`."""
        scratch, device = self._scratch, self._task["device"]
        profilers = [scratch["program"]] if scratch["program"] else []
        launch = Sandbox(self._settings).launch(gpu=gpu_of(device, self._lane), profilers=profilers)
        reaper = ChildProcess(
            REAPER_MODULE,
            f"a scratch run on {device}",
            {
                "module": SCRATCH_MODULE,
                "memory-bytes": self._task["memory_bytes"],
                "sandbox": json.dumps(launch),
                "profiler": int(scratch["profiler"]),
            },
            {"control": socket.SOCK_STREAM, "server": socket.SOCK_STREAM},
            environment={TAG_VARIABLE: self._tag, **torch_environment()},
            max_log_bytes=MAX_LOG_BYTES,
        )
        refuse_descriptors(reaper.sockets["server"])
        try:
            return await self._supervise(reaper, self._tag)
        finally:
            reaper.close()

    @property
    def _scratch(self) -> ScratchTask:
        return self._task["scratch"]

    def _how_it_ended(self, report: ReaperReport | None) -> tuple[ExitClass, str]:
        if self._stop_reason is not None:
            return self._stop_reason
        if report is not None and (report["trouble"] or report["over_memory"]):
            return super()._how_it_ended(report)
        if self._ended is None:
            if report is None:
                return "interrupted", "its process was killed"
            return (
                "killed",
                "the process that ran the command was ended, perhaps by the command itself",
            )
        if self._ended.timed_out:
            return "timeout", f"the command was not done within {self._scratch['limit_s']:g} s"
        if self._ended.status == 0:
            return "ok", ""
        number = self._ended.status - SIGNALLED
        by = f", as a command does that ends by {signal_name(number)}" if 0 < number < 65 else ""
        return "error", f"the command ended with exit status {self._ended.status}{by}"

    async def _read_messages(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 20)
        try:
            kind, _ = await self._message(reader)
            if kind != READY:
                raise WrongMessage("a message before it was ready")
            self._ready = True
            await self._get_device()
            await self._send_order(writer)
            while kind != DONE:
                kind, body = await self._message(reader)
                self._receive(kind, body)
            self._ended_at = time.monotonic()
        except WrongMessage as refused:
            self.stop("invalid", f"its process sent {refused}")
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has ended; the reaper reports how
        finally:
            writer.close()

    async def _get_device(self) -> None:
        self._on_event(StateChanged("waiting_gpu"))
        asked = time.monotonic()
        await self._lease.acquire()
        self._has_device = True
        now = time.monotonic()
        self._device_wait_s += now - asked
        self._until = now + self._scratch["limit_s"] + TERM_S + END_S
        self._on_event(StateChanged("running"))

    async def _send_order(self, writer: asyncio.StreamWriter) -> None:
        scratch, contents = self._scratch, self._task.pop("contents", {})
        order: ScratchOrder = {
            "command": scratch["command"],
            "files": scratch["files"],
            "fetch": scratch["fetch"],
            "limit_s": scratch["limit_s"],
            "most_bytes": scratch["most_bytes"],
            # Triton interprets kernels where there is no GPU.
            "environment": {"TRITON_INTERPRET": "1"} if self._task["device"] == "cpu" else {},
            "behind": [*contents],
        }
        writer.write(frame(order))
        for content in contents.values():
            writer.write(LENGTH.pack(len(content)) + content)
            await writer.drain()

    async def _message(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        """The next message: its kind and what follows. It waits if the process sends too much."""
        (nbytes,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        most = MAX_HEAD_BYTES + max(self._scratch["most_bytes"], MAX_OUTPUT_BYTES)
        if not 1 <= nbytes <= most:
            raise WrongMessage(f"a message of {nbytes} bytes")
        kind = await reader.readexactly(1)
        if kind != FILE and nbytes > MAX_OUTPUT_BYTES + MAX_HEAD_BYTES:
            raise WrongMessage(f"a message of {nbytes} bytes that is no file")
        body = await reader.readexactly(nbytes - 1)
        took_s = OUTPUT_S if kind == OUTPUT else max(FRAME_S, BYTE_S * nbytes)
        await asyncio.sleep(self._loop_time.spend(time.monotonic(), took_s))
        return kind, body

    def _receive(self, kind: bytes, body: bytes) -> None:
        if kind == OUTPUT and self._ended is None:
            self._take_output(body)
        elif kind == ENDED and self._ended is None:
            self._ended = _parse(_ENDED, body, "an end")
            self._release()
            if not self._ended.timed_out:
                self._on_event(CommandEnded(self._ended.status))
            self._on_event(StateChanged("finalizing"))
        elif kind == FILE and self._ended is not None:
            self._take_file(body)
        elif kind != DONE or self._ended is None:
            raise WrongMessage(f"a message {kind!r} at the wrong time")

    def _take_output(self, body: bytes) -> None:
        if len(body) <= AT.size:
            raise WrongMessage("output without content")
        (at,), content = AT.unpack_from(body), body[AT.size :]
        if not self._written <= at < 1 << 60:
            raise WrongMessage("output that was sent before")
        self._written = at + len(content)
        self._on_event(OutputWritten(at, content))

    def _take_file(self, body: bytes) -> None:
        line, _, content = body.partition(b"\n")
        head = _parse(_FILE, line, "the name of a file")
        path = head.path
        self._fetched_bytes += len(content)
        if not any(path == one or path.startswith(f"{one}/") for one in self._scratch["fetch"]):
            raise WrongMessage("a file that was not asked for")
        if path in self._names.values() or len(self._names) == MOST_FETCHED + 1:
            raise WrongMessage("a file too many")
        if len(content) > self._scratch["most_bytes"] or self._fetched_bytes > MOST_FETCHED_BYTES:
            raise WrongMessage("files of too many bytes")
        name = NOT_IN_NAMES.sub("-", path).strip(".-")[-100:].lstrip(".-") or "file"
        while name in self._names:
            name = f"{len(self._names)}-{name}"
        self._names[name] = path
        error = printable(head.error)
        self._on_event(FileFetched(path, name, b"" if error else content, error))

    async def _watch(self) -> None:
        """End the run if it does not start, or is not done long after the command must have ended."""
        limit_s = self._settings.start_timeout_s
        while True:
            await asyncio.sleep(WATCH_POLL_S)
            now = time.monotonic()
            if self._ended_at is not None:
                if now - self._ended_at > ENDED_S:
                    self._stopping.set()  # what it has said about its end counts
            elif not self._ready:
                if now - self._began > limit_s:
                    self.stop("timeout", f"it did not start within {limit_s:g} s")
            elif self._until is not None and now > self._until:
                self.stop("timeout", f"it was not done within {self._scratch['limit_s']:g} s")


_ENDED, _FILE = TypeAdapter(CommandExit), TypeAdapter(_FileHead)


def _parse(form: TypeAdapter[T], text: bytes, what: str) -> T:
    if len(text) > MAX_HEAD_BYTES:
        raise WrongMessage(f"{what} of {len(text)} bytes")
    try:
        return form.validate_json(text)
    except ValidationError:
        raise WrongMessage(f"{what} with a fault") from None
