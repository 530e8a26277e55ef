"""Starts the server's processes as forks of one that has imported everything.

Most of the time of a server's start goes into imports: one second in the process that speaks HTTP,
and more than one for torch in each worker. One process for each process of pytest, the *template*,
imports them once. It runs none of their code, so a fork of it is in the state in which `python -m`
is after its imports. It has its own environment, arguments, descriptors and exit status, as a
process started with exec has.

    pytest - template - server (HTTP) - worker
                                      - template of its workers

A worker must be the child of its server, which waits for it and ends with it. Therefore each server
has a template of its own below it, forked before the server runs, which clones workers with
CLONE_PARENT. What else the server starts (jobs, the JSON process) is started with exec as always.

`Forked` takes the place of `subprocess.Popen`. It starts with exec what would not be the same: see
`is_forkable`. Real servers serve the shared fixture of tests/e2e and its tests of load, crowds and
new ops, those of tests/image, of the docs' examples and tests/service/test_stalls.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = str(Path(__file__).parents[1])
SERVER, WORKER = "warpcall_service.cli", "warpcall_service.worker.main"
TEMPLATE = "template of workers"  # the command line of a server's second template
PACKET_BYTES = 100_000  # of a request: arguments and environment
MAX_FDS = 32  # in a request
TITLE_BYTES = 4000  # for the command lines of forks
# Read by the interpreter or by libraries while they are loaded, when the template's count.
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "TRITON_")
# A worker's environment has these: glibc has read the template's, but can be set in another way.
MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_MAX_": -4,
    "MALLOC_ARENA_MAX": -8,
}
AS_TEMPLATE = {"OMP_WAIT_POLICY": "passive"}  # what workers are started with
PR_GET_TID_ADDRESS = 40
SYS_CLONE = 56
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000

Fork = Callable[[], int]


def is_forkable(args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork of the template is what `python -m` would be, with these."""
    if platform.machine() != "x86_64":  # SYS_CLONE is its number there
        return False
    if list(args[:3]) != [sys.executable, "-m", SERVER] and args[:2] != [sys.executable, "-c"]:
        return False
    return env.get("PYTHONPATH", ROOT) == ROOT and not any(
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
        if not plain or not is_forkable(args, os.environ if env is None else env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        fds = [
            given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        request = {
            "args": args,
            "env": {**(os.environ if env is None else env)},
            "cwd": str(Path.cwd()),
        }
        self._status, theirs = socket.socketpair()
        with theirs:
            _send(_template(), request, [theirs.fileno(), *fds])
        self._child_created = True
        self.pid = int.from_bytes(self._status.recv(4, socket.MSG_WAITALL), "little")
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


class _Worker(subprocess.Popen[Any]):
    """What a forked server starts in place of Popen: a worker comes from the server's template."""

    template: socket.socket

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, pass_fds, _, env, _, _, _, *others) = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_, group = others
        if list(args[:4]) != [sys.executable, "-P", "-m", WORKER]:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {"args": args, "env": {**env}, "cwd": str(Path.cwd()), "fds": [*pass_fds]}
        os.close(os.dup(0))  # raises OSError where no descriptor is left, as a real start would
        _send(self.template, request, [p2cread, c2pwrite, errwrite, *pass_fds])
        self.pid = int.from_bytes(self.template.recv(4), "little")
        self._child_created = True
        if group >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.setpgid(self.pid, group)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


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
            program = f"from tests.forks import template; template({theirs.fileno()})"
            process = subprocess.Popen(
                [sys.executable, "-c", program, "-" * TITLE_BYTES],
                env={**kept, **AS_TEMPLATE, "PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            _started.append(ours)
            atexit.register(process.wait)
            atexit.register(ours.close)  # called first: the template ends then
    return _started[0]


def _send(to: socket.socket, request: dict[str, Any], fds: Sequence[int]) -> None:
    socket.send_fds(to, [json.dumps(request).encode()], [*fds])


def _receive(source: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    data, fds, _, _ = socket.recv_fds(source, PACKET_BYTES, MAX_FDS)
    return (json.loads(data), fds) if data else None


def template(fd: int) -> None:
    """Import what the server's processes need, and fork them until pytest's process has ended."""

    import warpcall_kernels
    import warpcall_service.cli
    import warpcall_service.worker.job_check
    import warpcall_service.worker.main
    import warpcall_service.worker.program_planner
    import warpcall_service.worker.programs  # noqa: F401

    warpcall_kernels.ops()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread only"  # noqa: PTH208
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for pytest
    gc.collect()
    gc.freeze()  # what is here is shared with the forks: leave its pages alone
    source = socket.socket(fileno=fd)
    poll = select.poll()
    poll.register(source, select.POLLIN)
    living: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready != source.fileno():
                pid, status = living.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                with status, contextlib.suppress(OSError):
                    status.sendall(os.waitpid(pid, 0)[1].to_bytes(4, "little"))
                continue
            received = _receive(source)
            if received is None:
                return
            request, (theirs, *fds) = received
            if not (pid := os.fork()):
                (_serve if request["args"][1] == "-m" else _run_program)(request, fds)
            status = socket.socket(fileno=theirs)
            for other in fds:
                os.close(other)
            status.sendall(pid.to_bytes(4, "little"))
            pidfd = os.pidfd_open(pid)
            living[pidfd] = pid, status
            poll.register(pidfd, select.POLLIN)


def _serve(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be a server, in a fork of the template."""
    command = request["args"][3:4]
    if command and not command[0].startswith("-"):  # an administrator's: it starts no worker
        _run_program(request, fds)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        _clone_workers(theirs)
    kept = ours.detach()
    high = os.dup2(
        kept, 900, inheritable=False
    )  # out of the way of the descriptors that tests count
    _Worker.template = socket.socket(fileno=high)
    subprocess.Popen = _Worker  # type: ignore[misc]
    _become(request, dict(enumerate(fds)), [high])
    import warpcall_service.cli

    _run(warpcall_service.cli.main)


def _run_program(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be a command of warpcall-server, or what `python -c` runs, in a fork of the template."""
    _become(request, dict(enumerate(fds)), [])
    if request["args"][1] == "-m":
        import warpcall_service.cli

        _run(warpcall_service.cli.main)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    program = compile(request["args"][2], "<string>", "exec")
    _run(lambda: exec(program, vars(module)))  # noqa: S102  # what a test of ours gave


def _clone_workers(source: socket.socket) -> NoReturn:
    """Start workers as siblings of this process, until the server has ended."""
    null = os.open(os.devnull, os.O_RDWR)
    _set_descriptors({0: null, 1: null, 2: null}, [source.fileno()])
    _set_title([TEMPLATE])
    while received := _receive(source):
        request, fds = received
        pid = _clone()
        if not pid:
            numbers = [0, 1, 2, *request["fds"]]
            _become(request, dict(zip(numbers, fds, strict=True)), [])
            for name, number in MALLOPT.items():
                if name in os.environ:
                    ctypes.CDLL(None).mallopt(number, int(os.environ[name]))
            import warpcall_service.worker.main

            _run(warpcall_service.worker.main.main)
        for fd in fds:
            os.close(fd)
        source.send(pid.to_bytes(4, "little"))
    os._exit(0)


def _clone() -> int:
    """Fork, with this process's parent as the parent of the new one."""
    libc = ctypes.PyDLL(None)
    address = ctypes.c_void_p()  # where glibc keeps the number of this thread
    libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address))
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | signal.SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = libc.syscall(SYS_CLONE, ctypes.c_ulong(flags), None, None, address, None)
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    assert pid >= 0, "no further process"
    return pid


def _become(request: dict[str, Any], fds: dict[int, int], kept: list[int]) -> None:
    """Take over the arguments, environment, folder and descriptors; signals are as after exec."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _set_descriptors(fds, kept)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    args = request["args"]
    _set_title(args)
    sys.orig_argv[:] = args
    sys.argv[:] = args[args.index("-m") + 1 :] if "-m" in args[:3] else ["-c", *args[3:]]


def _set_descriptors(wanted: dict[int, int], kept: Sequence[int]) -> None:
    """Give descriptors the numbers that they shall have, and close all others but `kept`."""
    high = {number: _above(fd) for number, fd in wanted.items()}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  # no descriptor of its own is left open
        if int(entry) not in (*high.values(), *kept):
            with contextlib.suppress(OSError):
                os.close(int(entry))
    for number, fd in high.items():
        os.dup2(fd, number)
        os.close(fd)


def _above(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 1000)


def _set_title(args: Sequence[str]) -> None:
    """Make `args` the command line that others see: write it where the kernel reads it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(arg.encode() for arg in args)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run(main: Callable[[], None]) -> NoReturn:
    """Run the program to its end, as the interpreter does."""
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    except BaseException:  # noqa: BLE001  # whatever it is, this process ends with it
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    os._exit(status & 0xFF)
