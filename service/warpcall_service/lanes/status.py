"""The state of a lane, and the times of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal["starting", "ready", "restarting", "failed", "quarantined", "stopped"]
CLOSED = ("failed", "quarantined", "stopped")  # states from which a lane does not become ready


class Timing(NamedTuple):
    """The stages of one call in ms, and the device that ran it."""

    queue_ms: float
    h2d_ms: float
    kernel_ms: float
    d2h_ms: float
    device: str


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, for /readyz and /metrics.

    Attributes:
        reason: why it is in its state; of a lane that is ready, which kernels it compiles ahead, or
            empty.
        warming: whether it compiles or loads kernels ahead.
        plan_requests: requests that the worker's planning thread has not answered yet.
    """

    name: str
    state: State
    reason: str
    warming: bool
    device: str
    pid: int | None
    restarts: int
    queued: int
    in_flight: int
    plan_requests: int
    arena_used: int
    arena_free: int
    arena_waiting: int
