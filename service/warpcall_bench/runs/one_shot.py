"""Runs one process for one question about code of users, such as whether it can be imported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket

from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import TAG_VARIABLE, ReaperReport
from warpcall_bench.runs.sandbox import Sandbox, memory_bytes
from warpcall_bench.runs.sandboxed import CannotStart
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.messages import LENGTH, frame
from warpcall_service.processes.spawn import ChildProcess, refuse_descriptors, torch_environment

REAPER_MODULE = "warpcall_bench.runs.reaper"
MAX_LOG_BYTES = 64 << 10  # that uploaded code may write to the log of the server
MAX_REPORT_BYTES = 64 << 10
READY = frame({"ready": True})  # what a process sends that gets the name of a program afterwards
STOP_S = process_tree.TERMINATE_S + process_tree.KILL_S + 3.0  # for the reaper to end all


class OneShotError(Exception):
    """The process gave no valid answer. The message says why, in words for the user."""


class NotStarted(OneShotError):
    """The process could not be started, which is no fault of the code that it was to run."""


class _NotReady(Exception):
    """The process ended before it had imported what it needs."""


class OneShot:
    """One of our modules as a process that answers one frame with one frame, without a GPU.

    The module gets `--parent` and `--server-fd` as a job's process does. Call `ask` or `end`, once.

    Args:
        trusted: the process runs with the server's rights, for code of the operator. Otherwise it
            runs in the sandbox with the setting `uploads=sandboxed`, and with the server's rights
            with `trusted`.

    Raises:
        NotStarted: it could not be started.
    """

    def __init__(self, settings: BenchSettings, module: str, *, trusted: bool) -> None:
        self._settings = settings
        self._tag = f"check/{secrets.token_hex(8)}"
        options = {}
        try:
            if launch := launch_of(settings, trusted=trusted):
                options["sandbox"] = launch
            self._reaper = ChildProcess(
                REAPER_MODULE,
                "the check of a module" if trusted else "the check of an upload",
                {"module": module, "memory-bytes": memory_bytes(settings), **options},
                {"control": socket.SOCK_STREAM, "server": socket.SOCK_STREAM},
                environment={TAG_VARIABLE: self._tag, **torch_environment()},
                max_log_bytes=None if trusted else MAX_LOG_BYTES,
            )
            refuse_descriptors(self._reaper.sockets["server"])
        except (CannotStart, OSError) as error:
            raise NotStarted(f"its process could not be started: {error}") from None

    @property
    def runs(self) -> bool:
        """Whether it has not ended by itself."""
        return self._reaper.poll() is None

    async def ask(
        self, request: bytes, limit_s: float, max_answer_bytes: int, program: str = ""
    ) -> bytes:
        """Send the request and return the answer. All processes have ended when this returns.

        Args:
            request: JSON of the frame that the process reads.
            limit_s: seconds from now.
            program: module that answers, for a process that sends READY first.

        Returns:
            The content of the frame that it wrote; the caller must check it.

        Raises:
            NotStarted: it could not be started.
            OneShotError: it took too long or too much memory, ended before it had answered, or its
                answer is too large.
        """
        try:
            async with asyncio.timeout(limit_s):
                sock = self._reaper.sockets["server"]
                return await _ask(sock, request, max_answer_bytes, program)
        except TimeoutError:
            raise OneShotError(f"it was not done within {limit_s:g} s") from None
        except _NotReady:
            report = await _report(self._reaper.sockets["control"])
            why = (report and report["trouble"]) or "it ended before it was ready"
            raise NotStarted(f"its process could not be started: {why}") from None
        except (asyncio.IncompleteReadError, OSError):
            report = await _report(self._reaper.sockets["control"])
            if report is not None and report["trouble"]:
                raise NotStarted(f"its process could not be started: {report['trouble']}") from None
            if report is not None and report["over_memory"]:
                most = memory_bytes(self._settings)
                raise OneShotError(
                    f"its processes together took more than {most} bytes of memory"
                ) from None
            raise OneShotError("its process ended before it had answered") from None
        finally:
            await asyncio.shield(self.end())

    async def end(self) -> None:
        """End all processes; the reaper does it when its control socket is closed."""
        self._reaper.sockets["control"].close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._reaper.wait()
        self._reaper.kill()
        await self._reaper.wait()
        if self._reaper.poll() != 0:  # it was killed, and could not end all
            await asyncio.to_thread(process_tree.kill_tagged, self._tag)
        self._reaper.close()


def launch_of(settings: BenchSettings, *, trusted: bool) -> str:
    """How the sandbox of a process is started, as JSON; empty if it runs in none.

    Raises:
        CannotStart: the sandbox cannot be used.
    """
    if trusted or settings.uploads != "sandboxed":
        return ""
    return json.dumps(Sandbox(settings).launch())


async def run_one_shot(
    settings: BenchSettings,
    module: str,
    request: bytes,
    limit_s: float,
    max_answer_bytes: int,
    *,
    trusted: bool,
) -> bytes:
    """Run a module. Arguments, answer and errors are those of `OneShot` and its method `ask`."""
    process = OneShot(settings, module, trusted=trusted)
    return await process.ask(request, limit_s, max_answer_bytes)


async def _ask(sock: socket.socket, request: bytes, max_answer_bytes: int, program: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        if program:
            try:
                await reader.readexactly(len(READY))
            except (asyncio.IncompleteReadError, OSError):
                raise _NotReady from None
            writer.write(LENGTH.pack(len(program)) + program.encode())
        writer.write(LENGTH.pack(len(request)) + request)
        (nbytes,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if nbytes > max_answer_bytes:
            raise OneShotError(f"its answer has {nbytes} bytes, more than {max_answer_bytes}")
        return await reader.readexactly(nbytes)
    finally:
        writer.close()


async def _report(control: socket.socket) -> ReaperReport | None:
    """How the process ended; None if its reaper was killed."""
    control.setblocking(False)
    with contextlib.suppress(TimeoutError, OSError, ValueError):
        async with asyncio.timeout(STOP_S):
            text = await asyncio.get_running_loop().sock_recv(control, MAX_REPORT_BYTES)
            report: ReaperReport = json.loads(text)
            return report
    return None
