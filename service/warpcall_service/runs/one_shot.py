"""Runs one process for one question about code of users, such as whether it can be imported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import Mapping

from warpcall_service.lanes.messages import LENGTH
from warpcall_service.lanes.worker_handle import torch_environment
from warpcall_service.processes.spawn import ChildProcess
from warpcall_service.runs import process_tree
from warpcall_service.runs.messages import TAG_VARIABLE, ReaperReport
from warpcall_service.runs.sandbox import Sandbox, memory_bytes
from warpcall_service.runs.sandboxed import CannotStart
from warpcall_service.settings import Settings

REAPER_MODULE = "warpcall_service.runs.reaper"
MAX_LOG_BYTES = 64 << 10  # that uploaded code may write to the log of the server
MAX_REPORT_BYTES = 64 << 10
STOP_S = process_tree.TERMINATE_S + process_tree.KILL_S + 3.0  # for the reaper to end all


class OneShotError(Exception):
    """The process gave no valid answer. The message says why, in words for the user."""


class NotStarted(OneShotError):
    """The process could not be started, which is no fault of the code that it was to run."""


async def run_sandboxed(
    settings: Settings, module: str, request: bytes, limit_s: float, max_answer_bytes: int
) -> bytes:
    """Run one of our modules as a process that answers one frame with one frame, without a GPU.

    The module gets `--parent` and `--server-fd` as a job's process does. With the setting
    `uploads=sandboxed` it runs in the sandbox, with `trusted` with the server's rights. All its
    processes have ended when this returns.

    Args:
        request: JSON of the frame that it reads.

    Returns:
        The content of the frame that it wrote; the caller must check it.

    Raises:
        NotStarted: it could not be started.
        OneShotError: it took too long or too much memory, ended before it had answered, or its
            answer is too large.
    """
    options = {}
    if settings.uploads == "sandboxed":
        try:
            options["sandbox"] = json.dumps(Sandbox(settings).launch())
        except CannotStart as error:
            raise NotStarted(f"its process could not be started: {error}") from None
    name = "the check of an upload"
    logged = MAX_LOG_BYTES
    return await _run(settings, name, module, options, request, limit_s, max_answer_bytes, logged)


async def run_trusted(
    settings: Settings, module: str, request: bytes, limit_s: float, max_answer_bytes: int
) -> bytes:
    """Run one of our modules with the server's rights, for code of the operator.

    The rest is as in `run_sandboxed`.
    """
    name = "the check of a module"
    return await _run(settings, name, module, {}, request, limit_s, max_answer_bytes, None)


async def _run(
    settings: Settings,
    name: str,
    module: str,
    options: Mapping[str, str],
    request: bytes,
    limit_s: float,
    max_answer_bytes: int,
    max_log_bytes: int | None,
) -> bytes:
    tag = f"check/{secrets.token_hex(8)}"
    try:
        reaper = ChildProcess(
            REAPER_MODULE,
            name,
            {"module": module, "memory-bytes": memory_bytes(settings), **options},
            {"control": socket.SOCK_STREAM, "server": socket.SOCK_STREAM},
            environment={**torch_environment(), TAG_VARIABLE: tag},
            max_log_bytes=max_log_bytes,
        )
    except OSError as error:
        raise NotStarted(f"its process could not be started: {error}") from None
    with contextlib.closing(reaper):
        try:
            async with asyncio.timeout(limit_s):
                return await _ask(reaper.sockets["server"], request, max_answer_bytes)
        except TimeoutError:
            raise OneShotError(f"it was not done within {limit_s:g} s") from None
        except (asyncio.IncompleteReadError, OSError):
            report = await _report(reaper.sockets["control"])
            if report is not None and report["trouble"]:
                raise NotStarted(f"its process could not be started: {report['trouble']}") from None
            if report is not None and report["over_memory"]:
                most = memory_bytes(settings)
                raise OneShotError(
                    f"its processes together took more than {most} bytes of memory"
                ) from None
            raise OneShotError("its process ended before it had answered") from None
        finally:
            await asyncio.shield(_end(reaper, tag))


async def _ask(sock: socket.socket, request: bytes, max_answer_bytes: int) -> bytes:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
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


async def _end(reaper: ChildProcess, tag: str) -> None:
    """End all processes; the reaper does it when its control socket is closed."""
    reaper.sockets["control"].close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await reaper.wait()
    reaper.kill()
    await reaper.wait()
    await asyncio.to_thread(process_tree.kill_tagged, tag)
