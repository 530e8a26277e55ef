"""The types of `GET /v1/devices`: the servers' devices and what they did in the last hour."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class DeviceReading(Payload):
    """The state of a device at one moment, whoever uses it. What it does not report is null."""

    load: float | None
    """Share of the time in which a GPU ran a kernel, or share of a machine's CPU cores that worked:
    0 to 1."""
    memory_bytes: int | None
    """Memory that is in use, in bytes: of the GPU, or of the machine for a CPU."""
    memory_total_bytes: int | None
    """All memory, in bytes."""
    sm_clock_mhz: int | None
    """Clock of a GPU's multiprocessors in MHz."""
    power_w: float | None
    """Power that a GPU's board draws, in watts."""
    temperature_c: int | None
    """Temperature of a GPU in degrees Celsius."""
    throttled: str
    """Why a GPU ran slower than it could, such as "thermal slowdown"; empty if it did not."""
    power_capped: bool
    """Whether a GPU ran at its power limit, which is a steady state."""
    other_processes: int | None
    """Processes on a GPU that are not this server's; null for a CPU, and where the driver does not
    name processes as this machine does, as in most containers."""


@dataclass(frozen=True, kw_only=True)
class DeviceStep(Payload):
    """What a device did in one step of time."""

    started_at: str
    """When the step began."""
    calls: int
    """Calls of all users that ended in it."""
    calls_s: float
    """Seconds that the device worked on these calls."""
    blocks_s: float
    """Seconds for which jobs had the device to themselves, in timed blocks that ended in it."""
    reading: DeviceReading | None
    """State of the device; null if it was not read, because jobs had the device all the time."""


@dataclass(frozen=True, kw_only=True)
class Device(Payload):
    """A device of the server with its last hour."""

    name: str
    """Name of the device, such as "cuda:0"."""
    label: str
    """Name for readers, such as "cuda:0 (NVIDIA H200)"; empty until it was ready once."""
    state: str
    """"ready", "starting", "restarting", "failed", "quarantined" or "stopped"."""
    reason: str
    """Why it is not ready; empty if it is."""
    queued: int
    """Calls that wait for it."""
    in_flight: int
    """Calls that it runs, or that were sent ahead to its process."""
    restarts: int
    """How often its process was replaced since the server started."""
    step_s: float
    """Length of a step in seconds."""
    steps: list[DeviceStep] = field(repr=False)  # some 360 of them
    """Steps of the last hour in which something happened or was read, the earliest first. Of another
    server's device they begin when the server that answers began to read its heartbeats."""
    node: str = ""
    """Id of its server, as in Node; empty from older servers."""
    host: str = ""
    """Host name of its server's machine; empty from older servers."""


@dataclass(frozen=True, kw_only=True)
class DeviceList(Payload):
    """The devices of all servers that share a database, whichever of them answers."""

    devices: list[Device]
    """All of them, in any state: those of the server that answers first."""
