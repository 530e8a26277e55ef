"""Makes a process see and do what another one may, as if a command such as `unshare` had started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Commands that change only what `join` takes over, and then start the command that follows.
COMMANDS = ("nsenter", "setpriv", "unshare")
WAITS = "import sys; print(flush=True); sys.stdin.read()"
JOINED_S = 60.0
NAMESPACES = ("user", "mnt", "net", "uts")
PR_CAPBSET_DROP = 24
SYS_CAPSET = 126  # x86_64, as tests/template.py
CAPABILITY_VERSION_3 = 0x20080522


def example(under: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """A process that `under` has started, and that waits; None if it cannot start one."""
    process = subprocess.Popen(
        [*under, sys.executable, "-S", "-c", WAITS],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    if process.stdout.readline():
        return process
    ended(process)
    return None


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of an example, which `join` ends."""
    process.wait(JOINED_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def join(pid: int) -> None:
    """Take over the namespaces and the capabilities of an example, and end it.

    Call it in a process that has only one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if line.startswith("Cap"))
    caps = {name: int(value, 16) for name, value in fields.items()}
    for name in NAMESPACES:
        theirs = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        if os.fstat(theirs).st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
            _check(libc.setns(theirs, 0))
        os.close(theirs)
    for number in range(64):
        if not caps["CapBnd"] >> number & 1:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for numbers that there are not
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = [
        caps[name] >> half & 0xFFFFFFFF
        for half in (0, 32)
        for name in ("CapEff", "CapPrm", "CapInh")
    ]
    _check(libc.syscall(SYS_CAPSET, header, (ctypes.c_uint32 * 6)(*sets)))
    os.kill(pid, signal.SIGKILL)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
