"""Starts a process in the sandbox: bubblewrap, the filter of system calls, and the limits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess  # nosec B404
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from warpcall_service.runs import cgroups, seccomp
from warpcall_service.runs.messages import TAG_VARIABLE, Launch

INSIDE_MODULE = "warpcall_service.runs.inside"
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
) -> Sandboxed:
    """Start a module of ours in the sandbox. Call it in a process that has only one thread.

    Args:
        options: for the module, beside `--parent`.
        fds: descriptors that it gets, beside its standard ones.
        stdout, stderr: as for `subprocess.Popen`.

    Raises:
        CannotStart: bubblewrap or the filter is missing, or nothing limits the number of processes.
    """
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise CannotStart("bwrap is not installed; install bubblewrap 0.8 or newer")
    try:
        rules = seccomp.program()
    except seccomp.FilterError as error:
        raise CannotStart(str(error)) from None
    memory_bytes, tmp_bytes = launch["memory_bytes"], launch["tmp_bytes"]
    # Those of temporary files count, too: a job within its limits must not be killed.
    cgroup = cgroups.create(launch["processes"], memory_bytes + 2 * tmp_bytes + MARGIN_BYTES)
    if cgroup is None and os.geteuid() == 0:
        raise CannotStart(
            "the server runs as root, whose processes only a control group can limit, and it may "
            "create none; run it as another account, or let it write to its control group"
        )
    limits = f"--processes={launch['processes']}", f"--memory-bytes={memory_bytes}"
    inside = [sys.executable, "-P", "-m", INSIDE_MODULE, *limits, f"--file-bytes={tmp_bytes}"]
    tag = os.environ.get(TAG_VARIABLE, "")
    with contextlib.ExitStack() as files:
        filter_fd = _file("filter", rules, files)
        reading, info_fd = os.pipe()
        info = files.enter_context(os.fdopen(reading, "rb"))
        writing = files.enter_context(os.fdopen(info_fd, "wb"))
        arguments = [*launch["arguments"], "--setenv", TAG_VARIABLE, tag]
        arguments += ["--seccomp", str(filter_fd), "--info-fd", str(info_fd)]
        # In a file, because processes in the sandbox can read the command line of its init.
        text = "".join(f"{argument}\0" for argument in arguments)
        arguments_fd = _file("arguments", text.encode(), files)
        command = [bubblewrap, "--args", f"{arguments_fd}", "--", *inside, module]
        try:
            process = subprocess.Popen(  # nosec B603
                [*command, f"--parent={INIT_PID}", *options],
                pass_fds=(*fds, filter_fd, arguments_fd, info_fd),
                env={TAG_VARIABLE: tag},  # they can read the environment of its init, too
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=cgroup.enter if cgroup else None,  # noqa: PLW1509  # one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            if cgroup:
                cgroup.remove()
            raise CannotStart(f"bubblewrap cannot be started: {error}") from None
        writing.close()
        known = info.read()  # to its end: bubblewrap closes it before it starts the module
    return Sandboxed(process, json.loads(known)["child-pid"] if known else 0, cgroup)


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
