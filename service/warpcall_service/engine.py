"""The local engine: the lanes of this machine, which call goes to which, and what they can do."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from warpcall_service.arena import Slot
from warpcall_service.plan import InputTensor, Plan
from warpcall_service.settings import Settings

State = Literal["starting", "ready", "restarting", "failed", "stopped"]


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
    """One lane, for /readyz and /metrics. `reason` is empty while the state is ready."""

    name: str
    state: State
    reason: str
    device: str
    pid: int | None
    restarts: int
    queued: int
    in_flight: int
    arena_used: int
    arena_free: int
    arena_waiting: int


class LocalEngine:
    """Lanes on this machine.

    Attributes:
        catalog: after `start`, every op's declaration as `Op.describe` gives it, dtypes as wire codes.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: list[dict[str, Any]] = []

    async def start(self) -> None:
        """Start the lanes and wait for the first that is ready.

        Raises:
            EngineError: no lane can start; the message says why.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Refuse new calls, let those under way end (for `drain_timeout_s`), end the lanes."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether a lane can take a call now."""
        raise NotImplementedError

    async def plan(
        self, op: str, tensors: Sequence[InputTensor], params: Mapping[str, Any]
    ) -> Plan:
        """Check a call before its bytes are read, and lay out what it gives.

        Raises:
            NotFound: no such op.
            InvalidInput: tensors or parameters that do not fit it.
            Unavailable: no lane lives to ask.
            TimedOut: it did not answer within `call_timeout_s`.
        """
        raise NotImplementedError

    def cached_plan(self, key: Hashable) -> Plan | None:
        """The plan remembered under `key`, if it still holds."""
        raise NotImplementedError

    def remember(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan; the least recently used give way."""
        raise NotImplementedError

    async def acquire(self, nbytes: int, timeout_s: float, *, like: Slot | None = None) -> Slot:
        """Room for a call on the least loaded lane, or, urgently, on the lane that has `like`.

        Raises:
            TooLarge: more than an arena has.
            Busy: no room within `timeout_s`, or too many wait already.
            Unavailable: no lane lives.
        """
        raise NotImplementedError

    async def run(
        self, plan: Plan, source: Slot, target: Slot, target_offset: int, deadline: float
    ) -> Timing:
        """Run a call whose inputs lie at the start of `source`; outputs go to `target`.

        Both slots are of one lane and may be the same; the regions must not overlap. They stay
        lent until the lane is done with them, even if the caller releases them, leaves or times
        out before. Cancelled before it was sent to the lane, the call is dropped.

        Args:
            target_offset: where in `target` the output region begins; a multiple of 8.
            deadline: by `time.monotonic()`.

        Raises:
            KernelFailed: the op raised, or ran out of device memory.
            InvalidInput: the op refused the values.
            Busy: too many calls wait for the lane.
            Unavailable: the lane's process was lost while it ran this.
            TimedOut: the deadline passed.
        """
        raise NotImplementedError

    def status(self) -> list[LaneStatus]:
        """Every lane."""
        raise NotImplementedError
