"""The parent's side of a child process: start it with sockets and a log, watch it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess  # nosec B404
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from warpcall_service.processes.child_log import ChildLog

POLL_S = 0.005  # between two checks whether a process has ended
SO_PASSRIGHTS = 83  # as in Linux on x86 and Arm

NOTHING: Mapping[str, Any] = {}

# glibc keeps the memory of the references' temporaries in the heap for the next call, because fresh
# pages cost as much as computing on them. Free memory above M_TRIM_THRESHOLD returns to the system.
TORCH_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
    "OMP_WAIT_POLICY": "passive",  # idle threads must not spin on the CPUs that serve HTTP
}


class Process(Protocol):
    """What the server needs of a process that it started; see `ChildProcess`."""

    sockets: Mapping[str, socket.socket]

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""

    async def wait(self) -> None:
        """Wait until the process has ended."""

    def kill(self) -> None:
        """Kill the process and its process group."""

    def close(self) -> None:
        """Close the sockets."""


StartProcess = Callable[..., Process]  # with the arguments of ChildProcess


class ChildProcess:
    """One child process: a module of ours, run by this Python.

    What it writes to stdout and stderr becomes lines of the server's log. Create it in the thread
    of the event loop: the kernel kills the child when the thread that started it ends.

    Args:
        module: the module to run; it calls `child.start` first.
        name: names the process in the log.
        arguments: options for the module.
        sockets: for each socket pair its name and kind; the module gets its end as `--NAME-fd`.
        fds: further descriptors that the module gets as `--NAME-fd`.
        environment: variables beside those of this process.
        max_log_bytes: what it may write to the log, all of it as messages; None means that it runs
            only our own code, whose lines of the log stay as they are.

    Attributes:
        sockets: the server's ends of the socket pairs, by name.

    Raises:
        OSError: the process cannot be started; nothing is left open then.
    """

    def __init__(
        self,
        module: str,
        name: str,
        arguments: Mapping[str, object],
        sockets: Mapping[str, socket.SocketKind],
        *,
        fds: Mapping[str, int] = NOTHING,
        environment: Mapping[str, str] = NOTHING,
        max_log_bytes: int | None = None,
    ) -> None:
        found: dict[str, socket.socket] = {}
        self.sockets: Mapping[str, socket.socket] = found
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._log = ChildLog(name, max_log_bytes)
            ours.callback(self._log.close)
            theirs.callback(self._log.started)
            passed = dict(fds)
            for socket_name, kind in sockets.items():
                found[socket_name], other = socket.socketpair(socket.AF_UNIX, kind)
                ours.enter_context(found[socket_name])
                passed[socket_name] = theirs.enter_context(other).fileno()
            options = {"parent": os.getpid(), **arguments}
            options |= {f"{fd_name}-fd": fd for fd_name, fd in passed.items()}
            self._process = subprocess.Popen(  # nosec B603
                [sys.executable, "-P", "-m", module, *(f"--{k}={v}" for k, v in options.items())],
                pass_fds=list(passed.values()),
                env={**environment, **without_settings(), **environment},  # the given ones first
                stdin=subprocess.DEVNULL,
                stdout=self._log.fd,
                stderr=self._log.fd,
                process_group=0,  # of its own: Ctrl-C in a terminal is for the server
            )
            ours.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    async def wait(self) -> None:
        """Wait until the process has ended."""
        while self._process.poll() is None:
            await asyncio.sleep(POLL_S)

    def reap(self) -> None:
        """Wait, in the calling thread, until the process has ended."""
        self._process.wait()

    def kill(self) -> None:
        """Kill the process and its process group."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the sockets, and log what the process left in its pipe."""
        for sock in self.sockets.values():
            sock.close()
        self._log.close()


def refuse_descriptors(sock: socket.socket) -> None:
    """Let the kernel refuse descriptors that the other end sends, where it can: from Linux 6.16 on.

    Whoever receives a message closes those that it did not ask for, and may wait for that.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def signal_name(number: int) -> str:
    """The name of a signal; of the real-time signals only two have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def without_settings() -> dict[str, str]:
    """This environment without our settings, so that a child process has no passwords."""
    return {k: v for k, v in os.environ.items() if not k.upper().startswith("WARPCALL_")}


def torch_environment() -> dict[str, str]:
    """TORCH_ENVIRONMENT, in which what the operator has set takes precedence."""
    return {name: os.environ.get(name, value) for name, value in TORCH_ENVIRONMENT.items()}
