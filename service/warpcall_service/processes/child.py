"""The child's side of a process that `spawn.ChildProcess` started: its arguments, its end."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal

from warpcall_service import logs

PR_SET_PDEATHSIG = 1


def outlast_sigterm() -> None:
    """Go on after SIGTERM: the server ends this process once its calls have ended.

    systemd and Slurm send SIGTERM to all processes of a server at once. Processes that this one
    starts do not ignore it.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)


def start(**arguments: type) -> argparse.Namespace:
    """Set up a child process of the server and return its arguments.

    The kernel kills the process when its parent ends, so that it never outlives the server. It
    ignores SIGINT, because Ctrl-C in a terminal is for the server. It writes no core file, which
    would hold callers' data.

    Args:
        arguments: name and type of each option. A name that ends with `_fd` is a descriptor that
            the processes that this one starts do not inherit.
    """
    parser = argparse.ArgumentParser()
    for name, type_ in {"parent": int, **arguments}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type_, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != args.parent:
        os._exit(1)  # the parent ended before prctl was called
    for name, value in vars(args).items():
        if name.endswith("_fd"):
            os.set_inheritable(value, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logs.set_up_child()
    return args
