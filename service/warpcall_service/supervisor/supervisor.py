"""Starts the servers of one machine, restarts those that die, and ends all of them.

The public port belongs to all servers together: each has a socket of its own on it (SO_REUSEPORT),
and the kernel shares new connections out among them. A server listens there only while it is ready,
so that no connection waits for one that starts. Each server has a port of its own as well, under
which it registers, so that callers can reach just this server.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import subprocess  # nosec B404
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warpcall_service import logs
from warpcall_service.http.listen import ServerError, reserve
from warpcall_service.settings import Settings
from warpcall_service.supervisor.entry import REFUSED
from warpcall_service.supervisor.plan import PlannedServer

LOCK = "supervisor.lock"
FIRST_PAUSE_S = 0.5  # before a server that has died is started again
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0  # a server that was ready for so long is restarted after the first pause again
POLL_S = 0.2  # at most between two looks at the servers
URL_BYTES = 400  # of the address of a server, at most
KILL_S = 5.0  # beyond the time in which a server ends by itself
SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("warpcall.supervisor")


class Supervised:
    """One server: its process, and when it is started again.

    Args:
        public_port: of all servers of the supervisor; None if each has only a port of its own.
        flags: options for each of its processes.

    Attributes:
        is_ready: whether its present process has said that it serves.
        url: the address of its present process; empty until it serves.
        was_ready: whether any of its processes has.
    """

    def __init__(self, planned: PlannedServer, public_port: int | None, flags: list[str]) -> None:
        self.name = planned.name
        self._overrides = json.dumps(planned.overrides, default=str)
        self._flags = flags if public_port is None else [*flags, f"--public-port={public_port}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_fd = -1
        self._ready_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._due = 0.0
        self.was_ready = False
        self.url = ""

    def start_if_due(self) -> None:
        """Start the process unless it runs, or its pause is not over."""
        if self._process is not None or time.monotonic() < self._due:
            return
        self._ready_fd, theirs = os.pipe()
        os.set_blocking(self._ready_fd, False)
        try:
            self._process = subprocess.Popen(  # nosec B603
                [
                    *(sys.executable, "-P", "-m", "warpcall_service.supervisor.entry"),
                    f"--parent={os.getpid()}",
                    f"--name={self.name}",
                    f"--ready-fd={theirs}",
                    f"--overrides={self._overrides}",
                    *self._flags,
                ],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                process_group=0,  # of its own: Ctrl-C in a terminal is for the supervisor
            )
        finally:
            os.close(theirs)

    def look(self) -> int | None:
        """Note whether the server is ready, and return its exit status once when it has ended."""
        if self._process is None:
            return None
        if not self.is_ready:
            with contextlib.suppress(BlockingIOError):
                self.url = os.read(self._ready_fd, URL_BYTES).decode()
            if self.is_ready:
                self.was_ready, self._ready_at = True, time.monotonic()
        status = self._process.poll()
        if status is None:
            return None
        if self.is_ready and time.monotonic() - self._ready_at > STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        os.close(self._ready_fd)
        self._process, self.url = None, ""
        self._due = time.monotonic() + self._pause_s
        return status

    def postpone(self) -> float:
        """Double the next pause, and return the present one in seconds."""
        pause_s, self._pause_s = self._pause_s, min(LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause_s

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    @property
    def is_ready(self) -> bool:
        return bool(self.url)

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._process is not None


def supervise(
    settings: Settings, planned: list[PlannedServer], *, quiet: bool, json_lines: bool
) -> None:
    """Run the servers until SIGTERM or SIGINT, and end them. A second signal ends them at once.

    Raises:
        ServerError: the public port or the data folder is in use, or a server refuses its settings.
    """
    flags = [*(["--quiet"] if quiet else []), *([] if json_lines else ["--short-log"])]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(settings.data_dir))
        port = stack.enter_context(reserve(settings.host, settings.port))
        if settings.grpc_port is not None:
            shared = reserve(settings.host, settings.grpc_port, "WARPCALL_GRPC_PORT")
            grpc_port = stack.enter_context(shared)
            planned = [one.with_settings(grpc_port=grpc_port) for one in planned]
        waker = stack.enter_context(_waker())
        servers = [Supervised(one, port, flags) for one in planned]
        names = ", ".join(server.name for server in servers)
        log.info("%s servers on http://%s:%s: %s", len(servers), settings.host, port, names)
        try:
            _run(settings, servers, waker)
        finally:
            _end(servers, settings.stop_s, waker)
    log.info("all servers have stopped")


def _run(settings: Settings, servers: list[Supervised], waker: Waker) -> None:
    announced = False
    while not waker.stops:
        for server in servers:
            server.start_if_due()
            status = server.look()
            if status is None:
                continue
            if status == REFUSED and not server.was_ready:
                raise ServerError(f"the server {server.name} cannot start; the log says why")
            if settings.until and time.time() > settings.until - settings.stop_s - 1:
                return
            pause_s = server.postpone()
            log.error(
                "the server %s ended with status %s and is started again in %s s",
                *(server.name, status, pause_s),
            )
        if not announced and all(server.is_ready for server in servers):
            announced = True
            logs.announce(f"Warpcall: {len(servers)} servers are ready")
        waker.wait(POLL_S)


def _end(servers: list[Supervised], stop_s: float, waker: Waker) -> None:
    """Pass on each signal, and wait until all servers have ended."""
    passed = 0
    deadline = time.monotonic() + stop_s + KILL_S
    while any(server.runs for server in servers):
        if passed < max(1, waker.count):
            passed += 1
            # Whoever sent SIGTERM may have sent it to all processes: see the server's own handler.
            for server in servers:
                server.signal(signal.SIGINT)
        if time.monotonic() > deadline:
            for server in servers:
                server.signal(signal.SIGKILL)
        for server in servers:
            server.look()
        waker.wait(POLL_S)


class Waker:
    """Waits for SIGTERM, SIGINT and the end of a child.

    Attributes:
        count: of signals that ask to stop.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.count = 0

    @property
    def stops(self) -> bool:
        """Whether a signal asked to stop."""
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes, or for some seconds."""
        if select.select([self._fd], [], [], seconds)[0]:
            self.count += sum(number in SIGNALS for number in os.read(self._fd, 64))


@contextlib.contextmanager
def _waker() -> Iterator[Waker]:
    """Have signals written to a pipe, until the end of the block."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before: list[tuple[int, Any]] = [
        (number, signal.signal(number, _ignore)) for number in (*SIGNALS, signal.SIGCHLD)
    ]
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield Waker(reading)
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before:
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _ignore(number: int, frame: object) -> None:
    """Do nothing: Python writes the number of the signal to the pipe."""


@contextlib.contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    """Let only one supervisor use a data folder: the ids of its servers are there."""
    try:
        folder = data_dir.expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except RuntimeError:
        raise ServerError(
            f"WARPCALL_DATA_DIR must be a folder, got {data_dir} and a user without a home"
        ) from None
    except OSError as error:
        raise ServerError(
            f"WARPCALL_DATA_DIR: {data_dir} cannot be written: {error.strerror}"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ServerError(f"WARPCALL_DATA_DIR: other servers already use {folder}") from None
    finally:
        os.close(fd)
