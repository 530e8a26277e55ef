"""The processes that wait for the next check, as tests find them."""

from __future__ import annotations

import contextlib

import psutil

from warpcall_service.uploads.check_processes import WAITING_MODULE


def reapers_of(server: psutil.Process) -> list[psutil.Process]:
    """The reapers of the processes that wait, one of each. They are children of the server."""
    found = []
    for process in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"--module={WAITING_MODULE}" in process.cmdline():
                found.append(process)
    return found


def waiting_of(server: psutil.Process) -> list[psutil.Process]:
    """The processes that wait, without those of bubblewrap around them."""
    found = []
    for reaper in reapers_of(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in reaper.children(recursive=True):
                command = process.cmdline()
                if WAITING_MODULE in command and "bwrap" not in command[0]:
                    found.append(process)
    return found
