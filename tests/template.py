"""The template that tests/forks.py starts: it imports what the server's processes need, and is forked.

    pytest - template - server (HTTP) - worker
                                      - reaper of a job - the job's process
                                      - template of these

A supervisor is such a server, too: its template clones the servers below it, each of which has a template.

A worker must be the child of its server, which waits for it and ends with it, and so must a job's
reaper. Therefore each server has a template of its own below it, forked before the server runs,
which clones them with CLONE_PARENT. A reaper that is a fork forks what it guards, also the upload
processes. Those in which Triton interprets kernels have Triton, and what uses it, as it was imported for
them (`_import_interpreted`). What runs in a sandbox is started with exec.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
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

from tests import likeness

ROOT = str(Path(__file__).parents[1])
# In PYTHONPATH: see the `sitecustomize.py` there, which forks run after they have imported everything.
BRIEF_JOBS = f"{ROOT}/tests/service/brief_jobs"
SERVER, WORKER = "warpcall_service.cli", "warpcall_service.worker.main"
SUPERVISED = "warpcall_service.supervisor.entry"  # a server below a supervisor
REAPER = "warpcall_bench.runs.reaper"
CHECKS = (
    *("module_check", "plan_check", "problem_check", "sources_check", "upload_check", "verify"),
    "waiting_check",
)
PROFILED = "profiled"  # what a profiler starts
UPLOADS = ("profile_main", "record_main", "upload_main")
AHEAD = "warpcall_bench.runs.descriptors"  # it runs one of UPLOADS, once there is work for it
PROGRAMS = {
    AHEAD,
    *(f"warpcall_bench.programs.{name}" for name in ("job_main", PROFILED, *CHECKS, *UPLOADS)),
}
# They drop the variables of Triton before they import it, so that it is as the template has imported it.
DROP_VARIABLES = {
    f"warpcall_bench.programs.{name}" for name in ("record_main", "verify", "waiting_check")
}
# Triton decides when it is imported whether it interprets kernels, and these import it.
USE_TRITON = (
    "triton.",
    "warpcall_kernels.",
    "warpcall_bench.programs.",
    "warpcall_bench.profilers.",
)
NATIVE = "triton._C."  # it decides nothing, and can be loaded only once
TEMPLATE = "template of workers"  # the command line of a server's second template
INSTALLED = [
    folder for folder in sys.path if folder not in ("", ROOT)
]  # what -P leaves, and no PYTHONPATH
OTHERS = ("warpcall", "warpcall_bench", "warpcall_kernels", "warpcall_service")
PACKET_BYTES = 100_000  # of a request: arguments and environment
MAX_FDS = 32  # in a request
# A worker's environment has these: glibc has read the template's, but can be set in another way.
MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_MAX_": -4,
    "MALLOC_ARENA_MAX": -8,
}
# Fields of /proc/self/stat, counted from the state: where the memory begins that /proc shows as ...
COMMAND_LINE, ENVIRONMENT = 45, 47
PR_GET_TID_ADDRESS = 40
SYS_CLONE = 56
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000

_interpreted: dict[str, types.ModuleType] = {}  # see `_import_interpreted`


def has_path_of_forks(env: Mapping[str, str]) -> bool:
    """Whether nothing in PYTHONPATH takes the place of what the template has imported or run."""
    return not any(Path(folder, name).exists() for folder in _path(env) for name in OTHERS)


def _path(env: Mapping[str, str]) -> list[str]:
    return [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]


def send(to: socket.socket, request: dict[str, Any], fds: Sequence[int]) -> None:
    socket.send_fds(to, [json.dumps(request).encode()], [*fds])


def _receive(source: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    data, fds, _, _ = socket.recv_fds(source, PACKET_BYTES, MAX_FDS)
    return (json.loads(data), fds) if data else None


class Child(subprocess.Popen[Any]):
    """What a forked server starts in place of Popen: its template forks workers, reapers and programs.

    Attributes:
        template: the socket of the template, one for the process.
    """

    template: socket.socket

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, pass_fds, _, env, _, _, _, *others) = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_, group = others
        env = os.environ if env is None else env
        ours = list(args[:3]) == [sys.executable, "-P", "-m"]
        ours = ours and args[3] in (SUPERVISED, WORKER, REAPER, *PROGRAMS)
        if not (ours or _is_script(args)) or not has_path_of_forks(env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {"args": args, "env": {**env}, "cwd": str(Path.cwd()), "fds": [*pass_fds]}
        os.close(os.dup(0))  # raises OSError where no descriptor is left, as a real start would
        fds = [
            given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        send(self.template, request, [*fds, *pass_fds])
        self.pid = int.from_bytes(self.template.recv(4), "little")
        self._child_created = True
        if group >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.setpgid(self.pid, group)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


class _BelowReaper(subprocess.Popen[Any]):
    """What a forked reaper starts in place of Popen: it forks the processes that it guards."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, pass_fds, _, env, _, _, _, *others) = rest
        p2cread, _, _, c2pwrite, _, errwrite, *_ = others
        env = os.environ if env is None else env
        ours = list(args[:3]) == [sys.executable, "-P", "-m"] and args[3] in PROGRAMS
        if not (ours or _is_script(args)) or not has_path_of_forks(env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            request = {"args": args, "env": {**env}, "cwd": str(Path.cwd())}
            given = enumerate((p2cread, c2pwrite, errwrite))
            fds = {own: fd if fd != -1 else own for own, fd in given}
            _become(request, {**fds, **{fd: fd for fd in pass_fds}}, [])
            _run_module(args)
        self._child_created = True
        self._close_pipe_fds(p2cread, *rest[10:15])  # type: ignore[attr-defined]


def _is_script(args: Sequence[str]) -> bool:
    """Whether a program is one in Python that a test wrote, such as one that stands for a profiler."""
    line = f"#!{sys.executable}\n".encode()
    try:
        with open(args[0], "rb") as file:  # noqa: PTH123  # a name without a folder is searched in PATH
            return file.read(len(line)) == line
    except OSError:
        return False


def template(fd: int) -> None:
    """Import what the server's processes need, and fork them until pytest's process has ended."""

    import alembic.command  # noqa: F401  # each server migrates a database
    import numpy.ma  # noqa: F401  # the first median of each job would import it
    import pydantic.v1  # noqa: F401  # FastAPI imports it for the first route
    import torch

    import warpcall_bench.jobs.drain
    import warpcall_bench.programs.explain
    import warpcall_bench.programs.job_check
    import warpcall_bench.programs.job_main
    import warpcall_bench.programs.module_check
    import warpcall_bench.programs.operator_code
    import warpcall_bench.programs.plan_check
    import warpcall_bench.programs.problem_check
    import warpcall_bench.programs.profile_main
    import warpcall_bench.programs.record_main
    import warpcall_bench.programs.sources_check
    import warpcall_bench.programs.upload_check
    import warpcall_bench.programs.upload_main
    import warpcall_bench.programs.uploaded
    import warpcall_bench.programs.verify
    import warpcall_bench.programs.waiting_check
    import warpcall_bench.runs.descriptors
    import warpcall_bench.runs.reaper
    import warpcall_bench.services  # noqa: F401
    import warpcall_service.auth.admin_cli
    import warpcall_service.cli
    import warpcall_service.startup.serving
    import warpcall_service.supervisor.supervisor
    import warpcall_service.worker.main
    import warpcall_service.worker.program_planner
    import warpcall_service.worker.programs
    import warpcall_service.worker.warmup  # noqa: F401
    from warpcall_bench.drawing.sources import load_highlighter
    from warpcall_bench.pages.view import load_templates
    from warpcall_bench.programs.imports import import_for_cases

    import_for_cases()
    _ = torch.empty(1, device="meta") + 1  # the first such call imports for a second
    load_templates()  # it takes 0.3 s of CPU, which each server would take again
    load_highlighter()
    _interpreted.update(_import_interpreted())
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
            if request["args"] == [TEMPLATE]:  # of workers that are children of pytest's process
                with socket.socket(fileno=theirs) as status:
                    pid = _clone() or _clone_workers(status)
                    status.sendall(pid.to_bytes(4, "little"))
                continue
            if not (pid := os.fork()):
                if request["like"]:
                    likeness.join(request["like"])
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
    _become_server(request, dict(enumerate(fds)))
    import warpcall_service.cli

    _run(warpcall_service.cli.main)


def _become_server(request: dict[str, Any], fds: dict[int, int]) -> None:
    """Be what `_become` says, with a template of its own, which forks what this process starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        _clone_workers(theirs)
    theirs.detach()  # `_become` closes it, and may give its number to another descriptor
    kept = ours.detach()
    high = os.dup2(
        kept, 900, inheritable=False
    )  # out of the way of the descriptors that tests count
    Child.template = socket.socket(fileno=high)
    subprocess.Popen = Child  # type: ignore[misc]
    _become(request, fds, [high])
    _customize()


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
    """Start workers, reapers and supervised servers as siblings of this process, until the server has ended."""
    null = os.open(os.devnull, os.O_RDWR)
    _set_descriptors({0: null, 1: null, 2: null}, [source.fileno()])
    _set_title([TEMPLATE])
    while received := _receive(source):
        request, fds = received
        pid = _clone()
        if not pid:
            wanted = dict(zip([0, 1, 2, *request["fds"]], fds, strict=True))
            if request["args"][3] == SUPERVISED:
                _become_server(request, wanted)
                _run(importlib.import_module(SUPERVISED).main)
            _become(request, wanted, [])
            for name, number in MALLOPT.items():
                if name in os.environ:
                    ctypes.CDLL(None).mallopt(number, int(os.environ[name]))
            _run_module(request["args"])
        for fd in fds:
            os.close(fd)
        source.send(pid.to_bytes(4, "little"))
    os._exit(0)


def _run_module(args: Sequence[str]) -> NoReturn:
    """Be a worker, a reaper or a program of the platform, or a script, in a fork of a template."""
    if _is_script(args):
        os.setsid()
        subprocess.Popen = _BelowReaper  # type: ignore[misc]  # it forks what it starts
        sys.argv[:] = args
        _run(lambda: runpy.run_path(args[0], run_name="__main__"))
    name = args[3]
    if name == REAPER:
        subprocess.Popen = _BelowReaper  # type: ignore[misc]
    # What runs one of these gets its name as an argument.
    if name in PROGRAMS and "TRITON_INTERPRET" in os.environ and not DROP_VARIABLES & {*args}:
        _without_triton()
        _put(_interpreted)
    _customize()
    _run(importlib.import_module(name).main)


def _customize() -> None:
    """Run the first `sitecustomize.py` in PYTHONPATH, as Python does at its start."""
    for name in [name for name in sys.modules if name.endswith(".sitecustomize")]:
        del sys.modules[name]  # the process of which this is a fork has imported it for itself
    for file in (Path(folder, "sitecustomize.py") for folder in _path(os.environ)):
        if file.exists():
            runpy.run_path(str(file))
            return


def _import_interpreted() -> dict[str, types.ModuleType]:
    """Import Triton, and what uses it, a second time: as in an upload process whose kernels are interpreted.

    Each such process would otherwise import them anew, which takes 0.1 s of CPU.

    Returns:
        These modules by name. The ones of before are in their places again.
    """
    compiled = _without_triton()
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("warpcall_bench.programs.upload_main").import_ahead()
    del os.environ["TRITON_INTERPRET"]
    interpreted = _without_triton()
    _put(compiled)
    return interpreted


def _without_triton() -> dict[str, types.ModuleType]:
    """Remove Triton, and what uses it, from the imported modules, and return them."""
    names = [name for name in sys.modules if f"{name}.".startswith(USE_TRITON)]
    return {name: sys.modules.pop(name) for name in names if not f"{name}.".startswith(NATIVE)}


def _put(modules: Mapping[str, types.ModuleType]) -> None:
    """Let these be the imported modules of their names, also as attributes of other packages."""
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if package and package not in modules:
            setattr(sys.modules[package], last, module)


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
    signal.set_wakeup_fd(-1)  # a reaper has one
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _set_descriptors(fds, kept)
    _open_streams()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    args = request["args"]
    first = {"-P": [], "-c": [""]}.get(args[1], [request["cwd"]])
    sys.path[:] = [*first, *_path(request["env"]), *INSTALLED]
    _set_title(args)
    _write(ENVIRONMENT, [f"{name}={value}" for name, value in reversed(request["env"].items())])
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


def _open_streams() -> None:
    """Open stdout and stderr as the interpreter does: those of the template may have been files."""
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
        2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 1000)


def _set_title(args: Sequence[str]) -> None:
    """Make `args` the command line that others see."""
    _write(COMMAND_LINE, args)


def _write(field: int, texts: Sequence[str]) -> None:
    """Write texts to the memory that /proc shows: its begin and end are fields of `stat`."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[field]), int(fields[field + 1])
    text = b"\0".join(part.encode() for part in texts)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run(main: Callable[[], object]) -> NoReturn:
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
