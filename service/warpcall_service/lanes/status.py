"""The state of a lane, and the times of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal["starting", "ready", "restarting", "failed", "quarantined", "stopped"]
CLOSED = ("failed", "quarantined", "stopped")  # states from which a lane does not become ready


class Timing(NamedTuple):
    """The stages of one call in ms, the device that ran it, and how long it compiled meanwhile.

    The time of a compilation is part of the stage in which it took place, which is that of the kernel.
    """

    queue_ms: float
    h2d_ms: float
    kernel_ms: float
    d2h_ms: float
    device: str
    compile_ms: float = 0.0

    def stages_ms(self, upload_s: float) -> dict[str, float]:
        """All stages of a call whose inputs took `upload_s` seconds, for the log and usage."""
        return {
            "upload": upload_s * 1e3,
            "queue": self.queue_ms,
            "h2d": self.h2d_ms,
            "kernel": self.kernel_ms,
            "d2h": self.d2h_ms,
        }

    def header(self) -> bytes:
        """The value of the header Server-Timing."""
        compiled = f", compile;dur={self.compile_ms:.3f}" if self.compile_ms else ""
        return (
            f"queue;dur={self.queue_ms:.3f}, h2d;dur={self.h2d_ms:.3f}, "
            f"kernel;dur={self.kernel_ms:.3f}, d2h;dur={self.d2h_ms:.3f}{compiled}"
        ).encode()


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, for /readyz and /metrics.

    Attributes:
        reason: why it is in its state; of a lane that is ready, which kernels it compiles ahead, or
            empty.
        last_restart, last_restart_ms: why and when its process was replaced last, in milliseconds
            since 1970; empty and 0 if it was not.
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
    last_restart: str
    last_restart_ms: int
    queued: int
    in_flight: int
    plan_requests: int
    arena_used: int
    arena_free: int
    arena_waiting: int
