"""A control group for the processes of one sandbox, where this account may create one.

It limits the number of processes, and their memory including what belongs to no process, such as
files in memory. All of them together get as much of the CPUs as the server, however many they are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "warpcall-"  # of a group's name; then follow the id of its maker, "-" and a number
REMOVE_S = 2.0
POLL_S = 0.01
_PROC = Path("/proc")
_numbers = itertools.count()  # of the groups that this process has made


class Cgroup:
    """One group: one folder in version 2 of control groups, one for each controller in version 1."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def enter(self) -> None:
        """Move this process, which must have only one thread, into the group."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text("0")

    @property
    def list_of_processes(self) -> str:
        """The file with the ids of the group's processes."""
        return str(self._folders[0] / "cgroup.procs")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the group because of its limit of memory."""
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    counts = dict(line.split() for line in (folder / name).read_text().splitlines())
                    if counts.get("oom_kill", "0") != "0":
                        return True
        return False

    def remove(self) -> None:
        """Remove the group. It stays if it still has processes after REMOVE_S."""
        deadline = time.monotonic() + REMOVE_S  # killed processes leave it some time after
        for folder in self._folders:
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(POLL_S)


def create(processes: int, memory_bytes: int) -> Cgroup | None:
    """A new group with these limits; None if this account may not create one."""
    limits = {"pids.max": processes, "memory.max": memory_bytes, "memory.swap.max": 0}
    name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    for parent in _parents("cgroup2"):
        with contextlib.suppress(OSError):  # no controller, or the parent has processes itself
            (parent / "cgroup.subtree_control").write_text("+pids +memory")
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+cpu")
        if folder := _create(parent / name, limits, "pids.max"):
            return Cgroup([folder])
    pids = [_create(parent / name, limits, "pids.max") for parent in _parents("cgroup", "pids")]
    if not (folders := [folder for folder in pids if folder]):
        return None
    for parent in _parents("cgroup", "memory"):
        limit = "memory.limit_in_bytes"
        if folder := _create(parent / name, {limit: memory_bytes}, limit):
            folders.append(folder)
    for parent in _parents("cgroup", "cpu"):
        if folder := _create(parent / name, {}, "cpu.shares"):
            folders.append(folder)
    return Cgroup(folders)


def _create(folder: Path, limits: dict[str, int], needed: str) -> Path | None:
    """Create a group; None if that is not allowed, or if it lacks the file `needed`."""
    with contextlib.suppress(OSError):
        for old in folder.parent.glob(f"{PREFIX}*"):
            maker = old.name.removeprefix(PREFIX).partition("-")[0]
            if not (_PROC / maker).exists():  # it was killed
                with contextlib.suppress(OSError):
                    old.rmdir()
        folder.mkdir()
        try:
            if (folder / needed).exists():
                for file, value in limits.items():
                    if (folder / file).exists():
                        (folder / file).write_text(str(value))
                return folder
        except OSError:
            folder.rmdir()
            raise
        folder.rmdir()
    return None


def _parents(kind: str, controller: str = "") -> Iterator[Path]:
    """Groups below which the new one may lie: this process's own, and in version 2 its parent.

    In version 2 a group that has processes cannot have groups with limits below it. A service
    manager that delegates a group therefore starts the process in a group below that one.
    """
    own = {
        ("cgroup2" if number == "0" else "cgroup", name): path
        for line in (_PROC / "self/cgroup").read_text().splitlines()
        for number, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for line in (_PROC / "self/mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        root, folder = mount.split()[3:5]
        found, _, options = system.split()[:3]
        path = own.get((kind, controller))
        if found != kind or path is None or controller not in ["", *options.split(",")]:
            continue
        below = path.removeprefix(root.rstrip("/")).strip("/")
        group = Path(folder, below)
        yield group
        if kind == "cgroup2" and below:
            yield group.parent
