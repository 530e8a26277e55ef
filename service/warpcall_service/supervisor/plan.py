"""Which servers a supervisor starts: their names, devices and ports."""

from __future__ import annotations

import os
import subprocess  # nosec B404
import sys
from dataclasses import dataclass
from typing import Any

from warpcall_service.http.listen import ServerError
from warpcall_service.settings import Settings

PER_GPU = "per-gpu"
COUNT = "import torch; print(torch.cuda.device_count())"
COUNT_S = 120.0  # to import torch and count the GPUs, on a slow disk
LAST_PORT = 65_535


@dataclass(frozen=True)
class PlannedServer:
    """A server that the supervisor starts.

    Attributes:
        name: of the server in the log, and of the folder with its id: its devices, or its number.
        overrides: settings that differ from the supervisor's own, or that its command line gave.
    """

    name: str
    overrides: dict[str, Any]

    def with_settings(self, **changed: Any) -> PlannedServer:
        """This server with some settings changed."""
        return PlannedServer(self.name, {**self.overrides, **changed})


def plan_servers(settings: Settings, given: dict[str, Any]) -> list[PlannedServer]:
    """The servers of a supervisor with these settings; one if there is nothing to share out.

    Args:
        given: settings from the command line, which override the environment's.

    Raises:
        ServerError: there are more servers than GPUs, or no ports for them.
    """
    devices = _devices(settings)
    count = len(devices) if settings.servers == PER_GPU else int(settings.servers)
    on_cpu = devices == ["cpu"]
    if on_cpu and settings.servers == PER_GPU:
        count = 1
    if not on_cpu and count > len(devices):
        raise ServerError(
            f"WARPCALL_SERVERS: {count} servers need as many GPUs, there are {len(devices)}: "
            "two servers on one GPU would disturb each other's measurements"
        )
    if settings.port + count > LAST_PORT:
        raise ServerError(
            f"WARPCALL_PORT: {count} servers need the {count} ports after it, got {settings.port}"
        )
    own_ports = range(settings.port + 1, settings.port + count + 1)
    if count > 1 and settings.port and settings.grpc_port in own_ports:
        raise ServerError(
            f"WARPCALL_GRPC_PORT: the servers have the ports {own_ports[0]} to {own_ports[-1]} for "
            f"themselves, got {settings.grpc_port}"
        )
    planned = []
    for i in range(count):
        own = ["cpu"] if on_cpu else devices[i::count]
        changed = {
            "port": settings.port + 1 + i if settings.port else 0,
            "devices": ",".join(own),
            "servers": "1",
            "uds": settings.uds if i == 0 else None,
        }
        if on_cpu and not settings.cpu_threads:
            changed["cpu_threads"] = max(1, (os.cpu_count() or 1) // count)
        planned.append(PlannedServer(f"cpu-{i}" if on_cpu else ",".join(own), {**given, **changed}))
    return planned


def _devices(settings: Settings) -> list[str]:
    if settings.devices != "auto":
        return settings.devices.split(",")
    return [f"cuda:{i}" for i in range(_count_gpus())] or ["cpu"]


def _count_gpus() -> int:
    """The number of GPUs as torch counts them, in a process of its own: this one has no torch."""
    try:
        counted = subprocess.run(  # nosec B603
            [sys.executable, "-P", "-c", COUNT],
            check=True,
            capture_output=True,
            text=True,
            timeout=COUNT_S,
            stdin=subprocess.DEVNULL,
        )
        return int(counted.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ServerError(f"the GPUs cannot be counted: {said.strip()[-500:]}") from None
