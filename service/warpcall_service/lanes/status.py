"""What a lane tells: its state, and where the time of a call went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "restarting", "failed", "quarantined", "stopped"]
CLOSED = ("failed", "quarantined", "stopped")  # calls need not wait there


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of one call went, in ms, and what ran it."""

    queue_ms: float
    h2d_ms: float
    kernel_ms: float
    d2h_ms: float
    device: str


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, for /readyz and /metrics. `reason` is empty while the state is ready.

    Attributes:
        plan_requests: those that the process's planning thread has not answered yet.
    """

    name: str
    state: State
    reason: str
    device: str
    pid: int | None
    restarts: int
    queued: int
    in_flight: int
    plan_requests: int
    arena_used: int
    arena_free: int
    arena_waiting: int
