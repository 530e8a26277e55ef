"""Tries what must not work in the sandbox: runs in it, before any uploaded code may.

It writes what it could do, and should not have been able to, as JSON to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from warpcall_bench.runs.seccomp import CLONE_NEWUSER

PTRACE_TRACEME = 0
SECRETS = ("/proc/cmdline", "/proc/kpageflags", "/proc/slabinfo", "/proc/vmallocinfo")
MOST_PROCESSES = 4  # that it sees: bubblewrap's own ones, and itself

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--processes", type=int)
    args = parser.parse_args()
    failed = [
        text
        for text, works in (
            ("the data folder can be read", lambda: _reads(args.data_dir)),
            ("a network can be reached", lambda: [n for _, n in socket.if_nameindex()] != ["lo"]),
            ("processes outside of it can be seen", _sees_processes),
            (
                "its file system can be written",
                lambda: any(map(_writes, ("/", "/dev", sys.prefix))),
            ),
            ("its own /tmp cannot be written", lambda: not _writes("/tmp")),  # nosec B108
            ("processes can be traced", lambda: _libc.ptrace(PTRACE_TRACEME, 0, 0, 0) == 0),
            ("namespaces can be made", lambda: _libc.unshare(CLONE_NEWUSER) == 0),
            ("file systems can be mounted", _mounts),
            ("memory can be hidden in files", lambda: _opens(lambda: os.memfd_create("check"))),
            ("the kernel can be configured", lambda: _opens(_open_core_pattern)),
            ("its init has no filter", lambda: _status("Seccomp", "1") != "2"),
            ("it has capabilities", lambda: _status("CapPrm") != "0" * 16),
            ("it has the server's account", lambda: is_owner(sys.stdout.fileno())),
            ("files of the server can be leased", lambda: leases(__file__)),
            ("the modes of device files can be changed", lambda: changes("/dev/null")),
            ("descriptors can be sent to the server", sends_descriptors),
            ("the kernel's secrets can be read", lambda: any(map(_reads_file, SECRETS))),
            (f"its account cannot read {sys.prefix}: chmod -R o+rX it", _misses_packages),
            ("new programs may get capabilities", lambda: _status("NoNewPrivs") != "1"),
            ("more processes can be started than its limit", lambda: _exceeds(args.processes)),
        )
        if works()
    ]
    sys.stdout.write(json.dumps({"failed": failed}))


def is_owner(fd: int) -> bool:
    """Whether this process has the account that opened a pipe."""
    return os.fstat(fd).st_uid == os.getuid()


def leases(path: str) -> bool:
    """Whether each open of a file can be made to wait."""
    with open(path, "rb") as file, contextlib.suppress(OSError):  # noqa: PTH123  # as in the attack
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return True
    return False


def changes(path: str) -> bool:
    """Whether the mode of a file can be set, which does not change it here."""
    with contextlib.suppress(OSError):
        Path(path).chmod(Path(path).stat().st_mode & 0o7777)
        return True
    return False


def sends_descriptors() -> bool:
    """Whether a message can carry a descriptor."""
    one, other = socket.socketpair()
    with one, other, contextlib.suppress(OSError):
        socket.send_fds(one, [b"!"], [one.fileno()])
        return True
    return False


def _reads_file(path: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(path).read_bytes()[:1])
    return False


def _misses_packages() -> bool:
    """Whether a folder of Python's modules cannot be listed."""
    with contextlib.suppress(PermissionError):
        for folder in filter(os.path.isdir, sys.path):
            next(os.scandir(folder), None)
        return False
    return True


def _reads(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(folder.iterdir())
    return False


def _sees_processes() -> bool:
    return sum(entry.name.isdigit() for entry in Path("/proc").iterdir()) > MOST_PROCESSES


def _writes(folder: str) -> bool:
    file = Path(folder, "check-of-the-sandbox")
    with contextlib.suppress(OSError):
        file.touch()
        file.unlink()
        return True
    return False


def _mounts() -> bool:
    return bool(_libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)  # nosec B108


def _opens(open_: Callable[[], int]) -> bool:
    with contextlib.suppress(OSError):
        os.close(open_())
        return True
    return False


def _open_core_pattern() -> int:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


def _status(name: str, process: str = "self") -> str:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def _exceeds(processes: int) -> bool:
    """Whether `processes` more can be started. Those that were started end with the sandbox."""
    reader, writer = os.pipe()
    try:
        for _ in range(processes):
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)  # until the process that forked it closes the pipe
                os._exit(0)
    except OSError:
        return False
    finally:
        os.close(writer)
    return True


if __name__ == "__main__":
    main()
