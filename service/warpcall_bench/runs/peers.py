"""The upload processes of a job, as the job's process sees them: start, stop, end.

Each is a `warpcall_kernels.measuring.Peer`. The reaper starts and ends them (`runs.reaper`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import REQUEST_BYTES, StartUpload, UploadEnded, UploadStarted
from warpcall_bench.runs.peer_child import HELLO
from warpcall_service.processes.spawn import refuse_descriptors, signal_name
from warpcall_service.text import printable

UPLOAD_MODULE = "warpcall_bench.programs.upload_main"
HELLO_S = 60.0  # within which it must have sent it
MOST_WORDS = 500  # bytes of what a process wrote that did not start
STOP_S = 5.0
STOP_POLL_S = 20e-6
OUT_OF_MEMORY = "out of memory"
NOT_STOPPED = "its processes did not stand still while others were timed"
PF_EXITING = 0x4  # flag of a process that is ending, in /proc/PID/stat
_CREDENTIALS = struct.Struct("3i")  # process, user and group that the kernel reports of a sender


class Reaper:
    """The connection of the job's process to its reaper. Threads may start and end processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._asking = threading.Lock()
        self._numbers = itertools.count()
        self._running: dict[int, Peer] = {}

    def start(self, module: str, *, prints: bool = True) -> Peer:
        """Start an upload process.

        Args:
            module: the module whose program it runs.
            prints: whether this process gets what it prints. Otherwise the server's log does.

        Raises:
            RuntimeError: it cannot be started.
            OSError: likewise.
        """
        number = next(self._numbers)
        with contextlib.ExitStack() as failing, contextlib.ExitStack() as passed:
            ours, theirs = map(failing.enter_context, socket.socketpair())
            passed.enter_context(theirs)
            fds, pipe = [theirs.fileno()], None
            if prints:
                reading, writing = os.pipe()
                passed.callback(os.close, writing)
                pipe = failing.enter_context(open(reading, "rb", buffering=0))  # noqa: PTH123
                os.set_blocking(reading, False)
                fds.append(writing)
            refuse_descriptors(ours)
            # The kernel then adds to each message which process sent it.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            request: StartUpload = {"start": number, "module": module}
            started: UploadStarted = self._ask(request, fds)
            if started["trouble"]:
                raise RuntimeError(f"its process could not be started: {started['trouble']}")
            failing.pop_all()
        self._running[number] = peer = Peer(self, number, ours, started, pipe)
        return peer

    def end(self, number: int, *, ended: bool) -> UploadEnded:
        """End an upload process; `ended` says that it has ended by itself."""
        del self._running[number]
        answer: UploadEnded = self._ask({"end": number, "ended": ended}, [])
        if answer["left"]:
            raise RuntimeError("processes of uploaded code could not be ended")
        return answer

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let no upload process run meanwhile."""
        stopped = [peer for peer in self._running.values() if peer.pid and not peer.is_stopped]
        for peer in stopped:
            peer.stop()
        yield
        for peer in stopped:
            peer.resume()

    def end_all(self) -> None:
        """End all upload processes that still run."""
        for peer in [*self._running.values()]:
            peer.end()

    def _ask(self, request: Mapping[str, Any], fds: list[int]) -> Any:
        try:
            with self._asking:
                socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
                text = self._sock.recv(REQUEST_BYTES)
        except OSError:
            text = b""
        if not text:
            os._exit(1)  # the reaper has ended, and this process is about to
        return json.loads(text)


class Peer:
    """One upload process, as `warpcall_kernels.measuring.Peer` describes it. Call `greet` first.

    Attributes:
        sock: this process's end of the socket pair.
        prints: this process's end of the pipe to which it prints; None if the server's log has it.
    """

    def __init__(
        self,
        reaper: Reaper,
        number: int,
        sock: socket.socket,
        started: UploadStarted,
        prints: BinaryIO | None = None,
    ) -> None:
        self.sock = sock
        self.prints = prints
        self.pid = 0
        self._reaper = reaper
        self._number = number
        self._started = started
        self._pidfd = -1
        self._stopped: set[int] = set()
        self._how: str | None = None  # it ended, once it has

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, and not resumed."""
        return bool(self._stopped)

    def greet(self) -> None:
        """Wait for its first message, and set `pid` as the kernel reports it.

        What the process itself says would not do: it sees the numbers of its own PID namespace, and
        it could name another process.

        Raises:
            RuntimeError: it ended before, sent something else, or nothing in time.
        """
        try:
            pid = self._received_hello()
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            trouble = f"its process did not start: {error or type(error).__name__}"
        except ValueError as error:
            trouble = f"its process did not start: {error}"
        else:
            self.pid = pid
            return
        how, wrote = self.end(), self._last_words()
        trouble += f" ({how})" if how else ""
        raise RuntimeError(f"{trouble}; it wrote: {wrote}" if wrote else trouble)

    def stop(self) -> None:
        """Stop all processes of the upload, so that they take no time from others.

        It waits until they stand still: one that is in the kernel goes on until it leaves it. A
        process that has not been stopped yet can resume another one, also by its end. So they are
        stopped again until all stand still, twice in a row. An upload that goes on after STOP_S is
        ended.
        """
        until, still = time.monotonic() + STOP_S, 0
        while still < 2:  # times in a row
            found = self._processes()
            running = [pid for pid in found if process_tree.runs(pid)]
            process_tree.send(found if running else found - self._stopped, signal.SIGSTOP)
            self._stopped |= found
            still = 0 if running else still + 1
            if time.monotonic() > until:
                self.end()
                self._stopped.clear()
                self._how = NOT_STOPPED
                return
            if running:
                time.sleep(STOP_POLL_S)

    def resume(self) -> None:
        """Let the processes that were stopped go on."""
        process_tree.send(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    def cpu_us(self) -> float:
        """The CPU time in us of all threads of the upload's processes so far."""
        return sum(map(process_tree.cpu_us, self._processes()))

    def end(self) -> str:
        """End all processes of the upload. Idempotent.

        Returns:
            How the process had ended before, such as "SIGSEGV", "exited with status 3" or "out of
            memory"; empty if this call ended it.
        """
        if self._how is None:
            answer = self._reaper.end(self._number, ended=self._has_ended())
            self._how = _description(answer)
            self.sock.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
        return self._how

    def _last_words(self) -> str:
        """What it wrote before it ended, such as a message of bubblewrap, on one line."""
        if self.prints is None:
            return ""
        with self.prints:
            text = (self.prints.read(MOST_WORDS) or b"").decode(errors="replace")
        return printable(" ".join(text.split()))

    def _received_hello(self) -> int:
        """The id of the process that sent the first message."""
        until, text, senders = time.monotonic() + HELLO_S, b"", set[int]()
        while len(text) < len(HELLO):
            self.sock.settimeout(max(0.01, until - time.monotonic()))
            room = socket.CMSG_SPACE(_CREDENTIALS.size)
            part, added, _, _ = self.sock.recvmsg(len(HELLO) - len(text), room)
            if not part:
                raise ValueError("it sent nothing")
            text += part
            for level, kind, data in added:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    senders.add(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
        self.sock.settimeout(None)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        if text != HELLO or len(senders) != 1:
            raise ValueError("it sent something else than a greeting")
        return senders.pop()

    def _processes(self) -> set[int]:
        """Ids of the processes of the upload, without those of bubblewrap."""
        started = self._started
        if started["processes"]:
            with contextlib.suppress(OSError):
                listed = Path(started["processes"]).read_bytes().split()
                return {*map(int, listed)} - {*started["bubblewrap"]}
        found = process_tree.below(started["root"])
        return found if started["bubblewrap"] else found | {started["root"]}

    def _has_ended(self) -> bool:
        """Whether the process has ended by itself, or is ending."""
        if self._pidfd < 0:
            return self._is_closed()
        if select.select([self._pidfd], [], [], 0)[0]:
            return True
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return True
        flags = int(text[text.rindex(")") + 2 :].split()[6])
        return bool(flags & PF_EXITING)

    def _is_closed(self) -> bool:
        with contextlib.suppress(OSError):
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return False


class PeerStarter:
    """Starts an upload process each time that it is called, or ahead of a call.

    Args:
        prints: as for `Reaper.start`.

    Raises, when it is called:
        RuntimeError, OSError: the process cannot be started.
    """

    def __init__(self, reaper: Reaper, module: str, *, prints: bool = True) -> None:
        self._reaper = reaper
        self._module = module
        self._prints = prints
        self._ahead: Peer | Exception | None = None

    def start_ahead(self) -> None:
        """Start the process for the next call; it imports torch while this process does."""
        if self._ahead is not None:
            return
        try:
            self._ahead = self._reaper.start(self._module, prints=self._prints)
        except (RuntimeError, OSError) as error:
            self._ahead = error

    def __call__(self) -> Peer:
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        peer = ahead or self._reaper.start(self._module, prints=self._prints)
        peer.greet()
        return peer


def _description(answer: UploadEnded) -> str:
    if answer["out_of_memory"]:
        return OUT_OF_MEMORY
    status = answer["status"]
    if status is None:
        return ""
    return signal_name(-status) if status < 0 else f"exited with status {status}"
