"""Starts the server's processes as forks of one that has imported everything.

Most of the time of a server's start goes into imports: one second in the process that speaks HTTP,
and more than one for torch in each worker and in each job. One process for each process of pytest,
the *template*, imports them once: see tests/template.py. It runs none of their code, so a fork of
it is in the state in which `python -m` is after its imports. It has its own environment, arguments,
descriptors and exit status, as a process started with exec has.

`Forked` takes the place of `subprocess.Popen`. It starts with exec what would not be the same: see
`is_forkable`. What `unshare` and such commands start is a fork as well: see tests/likeness.py. Forks run the
`sitecustomize.py` of PYTHONPATH, too, after their imports. Servers that are no forks serve the tests of load,
wheels and new ops in tests/e2e, that of attackers in tests/service/http, those of tests/image, and what
tests start in a shell.
"""

from __future__ import annotations

import atexit
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests import likeness
from tests.likeness import COMMANDS
from tests.template import ROOT, SERVER, TEMPLATE, Child, has_path_of_forks, send

TITLE_BYTES = 4000  # for the command lines of forks
ENVIRONMENT_BYTES = 16_000  # for the variables of forks that the template has not
# Read by the interpreter or by libraries while they are loaded, when the template's count.
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "TRITON_")
AS_TEMPLATE = {"OMP_WAIT_POLICY": "passive"}  # what workers are started with


def is_forkable(args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork of the template is what `python -m` would be, with these."""
    if platform.machine() != "x86_64":  # SYS_CLONE is its number there
        return False
    if list(args[:3]) != [sys.executable, "-m", SERVER] and args[:2] != [sys.executable, "-c"]:
        return False
    return has_path_of_forks(env) and not any(
        name.startswith(READ_AT_START) and name != "PYTHONPATH" and os.environ.get(name) != value
        for name, value in env.items()
    )


class Forked(subprocess.Popen[Any]):
    """A process that was forked by the template; else it is what Popen makes."""

    _status: socket.socket | None = None  # where the template says how it ended

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (executable, preexec, close_fds, pass_fds, cwd, env, _, _, shell, *others) = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *identity = others
        _, gid, gids, uid, umask, new_session, group = identity
        special = (executable, preexec, pass_fds, cwd, shell, gid, gids, uid, new_session)
        plain = not any(special) and (umask, group) == (-1, -1) and close_fds
        env = os.environ if env is None else env
        begin = args.index(sys.executable) if sys.executable in args else 0
        under, command = args[:begin], args[begin:]
        ours = plain and is_forkable(command, env) and (not under or under[0] in COMMANDS)
        like = likeness.example(under, env) if ours and under else None
        if not ours or (under and like is None):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        fds = [
            given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        request = {
            "args": command,
            "env": {**env},
            "cwd": str(Path.cwd()),
            "like": like.pid if like else 0,
        }
        self._status, theirs = socket.socketpair()
        with theirs:
            send(_template(), request, [theirs.fileno(), *fds])
        self._child_created = True
        self.pid = int.from_bytes(self._status.recv(4, socket.MSG_WAITALL), "little")
        if like:
            likeness.ended(like)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._status is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        said = self._status.recv(4, socket.MSG_WAITALL)
        self._status.close()
        return self.pid, int.from_bytes(said, "little") if said else signal.SIGKILL

    def _internal_poll(self, *default: Any, **named: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*default, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
                    self._handle_exitstatus(ended[1])  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    args: Sequence[str], env: Mapping[str, str], *, given: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`: what a program prints, and how it ends."""
    pipe = subprocess.PIPE
    with Forked(args, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            stdout, stderr = process.communicate(given, timeout=timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let workers and reapers that this very process starts be forks, as those of a server are."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        send(_template(), {"args": [TEMPLATE]}, [theirs.fileno()])
    with ours, patch.object(subprocess, "Popen", Child):
        Child.template = ours
        pid = int.from_bytes(ours.recv(4), "little")
        yield
    os.waitpid(pid, 0)


def start_template() -> None:
    """Start the template of this process if there is none: its forks stay in the namespaces that it is started in."""
    _template()


_lock = threading.Lock()
_started: list[socket.socket] = []


def _template() -> socket.socket:
    """The template of this process, started when it is first needed; it ends with this process."""
    with _lock:
        if not _started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept = {
                k: v for k, v in os.environ.items() if not k.startswith(("WARPCALL_", "TRITON_"))
            }
            program = f"from tests.template import template; template({theirs.fileno()})"
            process = subprocess.Popen(
                [sys.executable, "-c", program, "-" * TITLE_BYTES],
                env={**kept, **AS_TEMPLATE, "PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1"}
                | {"ROOM": "-" * ENVIRONMENT_BYTES},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            _started.append(ours)
            atexit.register(process.wait)
            atexit.register(ours.close)  # called first: the template ends then
    return _started[0]
