"""What the numbers belong to: the machine, the versions, and the memory that the server holds."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from demo.server import Server

ARENA = "memfd:"  # how the kernel names the arena's memory in a process's maps
PACKAGES = ("uvicorn", "uvloop", "httptools", "numpy", "torch", "triton")


@dataclass
class Memory:
    """The most that the server held at any look, in bytes resident.

    Attributes:
        http_total: of the process that speaks HTTP.
        http_arena: the part of it that is the arena.
        http_rest: the most of the rest: total without arena.
        lanes_total: of the lane processes together, the arena (the same memory) included.
        lanes_rest: of the lane processes together, without the arena.
    """

    http_total: int = 0
    http_arena: int = 0
    http_rest: int = 0
    lanes_total: int = 0
    lanes_rest: int = 0

    def note(self, now: Memory) -> None:
        """Keep the larger of each."""
        for name, value in vars(now).items():
            setattr(self, name, max(getattr(self, name), value))

    def __str__(self) -> str:
        mb = {name: value / 2**20 for name, value in vars(self).items()}
        return (
            f"resident memory of the server, at most: HTTP process {mb['http_total']:,.0f} MB "
            f"(arena {mb['http_arena']:,.0f} MB, the rest {mb['http_rest']:,.0f} MB); "
            f"lanes {mb['lanes_total']:,.0f} MB (without the arena {mb['lanes_rest']:,.0f} MB)"
        )


def memory_of(pid: int) -> Memory:
    """What the server holds now."""
    process = psutil.Process(pid)
    total, arena = _resident(process)
    lanes = [_resident(lane) for lane in process.children(recursive=True)]
    return Memory(
        http_total=total,
        http_arena=arena,
        http_rest=total - arena,
        lanes_total=sum(held for held, _ in lanes),
        lanes_rest=sum(held - shared for held, shared in lanes),
    )


def describe(server: Server) -> dict[str, str]:
    """The machine and the software, in words."""
    ready = json.loads(server.get("/readyz")[1])
    return {
        "machine": f"{_cpu()}, {psutil.cpu_count()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, Linux {platform.release()}",
        "lanes": json.dumps(ready.get("lanes", ready)),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }


def _resident(process: psutil.Process) -> tuple[int, int]:
    """Bytes resident, and those of them that are the arena; nothing of a process that left."""
    try:
        maps = process.memory_maps(grouped=False)
    except psutil.NoSuchProcess:
        return 0, 0
    return sum(m.rss for m in maps), sum(m.rss for m in maps if ARENA in m.path)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
