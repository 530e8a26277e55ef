"""Starts a process in the sandbox: the account, bubblewrap, the filter of system calls, the limits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess  # nosec B404
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warpcall_bench.runs import account, cgroups, seccomp
from warpcall_bench.runs.messages import TAG_VARIABLE, Launch

INSIDE_MODULE = "warpcall_bench.runs.inside"
INIT_PID = 1  # of bubblewrap inside the sandbox: the parent of the process that is started there
SIGNALLED = 128  # bubblewrap ends with this and the number of the signal
MARGIN_BYTES = 64 << 20  # of the group's memory, for bubblewrap and the kernel's own structures


class CannotStart(Exception):
    """The sandbox cannot be started. The message says why."""


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """A process in the sandbox.

    Attributes:
        process: bubblewrap outside of it. All processes in it end when this one ends.
        init: id of bubblewrap's process in it, the first one there; 0 if it was not started. All
            others have ended when this one has.
        cgroup: their control group, where there is one.
    """

    process: subprocess.Popen[bytes]
    init: int
    cgroup: cgroups.Cgroup | None


def start(
    launch: Launch,
    module: str,
    options: Sequence[str],
    fds: Sequence[int],
    stdout: int | None = None,
    stderr: int | None = None,
    *,
    gpu: bool = False,
    profiler: bool = False,
    wait_fd: int | None = None,
) -> Sandboxed:
    """Start a module of ours in the sandbox. Call it in a process that has only one thread.

    Args:
        options: for the module, beside `--parent`.
        fds: descriptors that it gets, beside its standard ones.
        stdout, stderr: as for `subprocess.Popen`.
        gpu: whether it shares memory of a GPU with a process of the server.
        profiler: whether it runs Nsight Compute.
        wait_fd: one of `fds`, on which it gets those of the module (`runs.descriptors`).

    Raises:
        CannotStart: bubblewrap, the filter or an account for uploaded code is missing.
    """
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise CannotStart("bwrap is not installed; install bubblewrap 0.8 or newer")
    try:
        rules, ids = seccomp.program(profiler=profiler), account.choose()
    except (seccomp.FilterError, account.NoAccount) as error:
        raise CannotStart(str(error)) from None
    memory_bytes, tmp_bytes = launch["memory_bytes"], launch["tmp_bytes"]
    # Those of temporary files count, too: a job within its limits must not be killed.
    cgroup = cgroups.create(launch["processes"], memory_bytes + 2 * tmp_bytes + MARGIN_BYTES)
    limits = f"--processes={launch['processes']}", f"--memory-bytes={memory_bytes}"
    inside = [sys.executable, "-P", "-m", INSIDE_MODULE, *limits, f"--file-bytes={tmp_bytes}"]
    inside += ["--gpu"] if gpu else []
    inside += [] if wait_fd is None else [f"--wait-fd={wait_fd}"]
    tag = os.environ.get(TAG_VARIABLE, "")
    with contextlib.ExitStack() as files:
        filter_fd = _file("filter", rules, files)
        reading, info_fd = os.pipe()
        info = files.enter_context(os.fdopen(reading, "rb"))
        writing = files.enter_context(os.fdopen(info_fd, "wb"))
        waiting_fd, going = os.pipe()
        files.callback(os.close, going)
        waiting = files.enter_context(os.fdopen(waiting_fd, "rb"))
        arguments = [*launch["arguments"], "--setenv", TAG_VARIABLE, tag]
        arguments += ["--seccomp", str(filter_fd), "--info-fd", str(info_fd)]
        arguments += ["--userns-block-fd", str(waiting_fd)]
        # In a file, because processes in the sandbox can read the command line of its init.
        text = "".join(f"{argument}\0" for argument in arguments)
        arguments_fd = _file("arguments", text.encode(), files)
        command = [bubblewrap, "--args", f"{arguments_fd}", "--", *inside, module]
        try:
            process = subprocess.Popen(  # nosec B603
                [*command, f"--parent={INIT_PID}", *options],
                pass_fds=(*fds, filter_fd, arguments_fd, info_fd, waiting_fd),
                env={TAG_VARIABLE: tag},  # they can read the environment of its init, too
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=lambda: _prepare(cgroup),  # noqa: PLW1509  # one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            if cgroup:
                cgroup.remove()
            raise CannotStart(f"bubblewrap cannot be started: {error}") from None
        writing.close()
        waiting.close()
        known = info.read()  # to its end: bubblewrap closes it before it waits for its account
        init = json.loads(known)["child-pid"] if known else 0
        if init:
            try:
                account.give(ids, init)
            except account.NoAccount as error:
                process.kill()
                process.wait()
                if cgroup:
                    cgroup.remove()
                raise CannotStart(str(error)) from None
        with contextlib.suppress(BrokenPipeError):  # bubblewrap has ended, and wrote why
            os.write(going, b"!")
    return Sandboxed(process, init, cgroup)


def _prepare(cgroup: cgroups.Cgroup | None) -> None:
    """What the new process does before it becomes bubblewrap."""
    if cgroup:
        cgroup.enter()
    # Where no control group limits the memory, the kernel ends these processes before the server.
    # What root has set so, nothing in the sandbox can undo.
    Path("/proc/self/oom_score_adj").write_text("1000")
    account.limit()


def status_inside(status: int) -> int:
    """The exit status of the process in the sandbox, negative for a signal, from bubblewrap's."""
    return SIGNALLED - status if status > SIGNALLED else status


def _file(name: str, content: bytes, files: contextlib.ExitStack) -> int:
    """A file in memory with this content, at whose beginning it is read next."""
    fd = os.memfd_create(name)
    files.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
