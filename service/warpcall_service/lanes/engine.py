"""The local engine: the lanes of this machine, which call goes to which, and what they can do."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from warpcall.errors import Busy, Problem, TimedOut
from warpcall.wire import TensorInfo
from warpcall_service.lanes.lane import Lane
from warpcall_service.lanes.messages import frame
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import CLOSED, LaneStatus, Timing
from warpcall_service.lanes.worker_handle import WorkerLost
from warpcall_service.settings import Settings

MAX_PLANS = 1024  # remembered ones; with keys and messages some 10 MB at most
MAX_CACHED_REQUEST_BYTES = 4 << 10  # a longer one is asked each time rather than kept as a key


class EngineError(Exception):
    """The engine cannot start; the message is for the server's operator."""


class LocalEngine:
    """Lanes on this machine.

    Attributes:
        catalog: after `start`, every op's declaration as `Op.describe` gives it, dtypes as wire codes.
        on_lost: called with the name of each lane that loses its process, and what was in it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: list[dict[str, Any]] = []
        self.on_lost: Callable[[str], None] = lambda lane: None
        self._lanes: list[Lane] = []
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._asking = 0  # calls that wait for their plan
        self._changed = asyncio.Event()  # set, and replaced, whenever a lane's state changes

    async def start(self) -> None:
        """Start the lanes and wait for the first that is ready.

        Raises:
            EngineError: no lane can start; the message says why.
        """
        wanted = self.settings.devices.split(",")
        try:
            for device in wanted:
                self._add_lane(device)
            await self._until(
                lambda: self.ready or all(lane.status().restarts for lane in self._lanes)
            )
            first = next((lane for lane in self._lanes if lane.state == "ready"), None)
            if first is None:
                reasons = "; ".join(f"{lane.name}: {lane.reason}" for lane in self._lanes)
                raise EngineError(f"no lane can start: {reasons}")
            self.catalog = first.hello["catalog"]
            if wanted == ["auto"]:
                for device in first.hello["devices"]:
                    if device != first.name:
                        self._add_lane(device)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Let the calls under way end (for `drain_timeout_s`), then end the lanes."""
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await asyncio.gather(*(lane.drained() for lane in self._lanes))
        except TimeoutError:
            pass  # whoever still waits is told that the server is stopping
        await asyncio.gather(*(lane.stop() for lane in self._lanes))

    @property
    def ready(self) -> bool:
        """Whether a lane can take a call now."""
        return any(lane.state == "ready" for lane in self._lanes)

    async def plan_call(
        self, op: str, tensors: Sequence[TensorInfo], params: Mapping[str, Any]
    ) -> Plan:
        """Check a call before its bytes are read, and lay out what it gives.

        A lane that is lost meanwhile is nobody's fault: the question waits for the next one.

        Raises:
            NotFound: no such op.
            Busy: too many wait for such an answer.
            InvalidInput: tensors or parameters that do not fit it.
            Unavailable: no lane lives to ask.
            TimedOut: it did not answer within `call_timeout_s`.
        """
        described = [[tensor.name, tensor.dtype, tensor.shape] for tensor in tensors]
        request = frame({"op": op, "params": dict(params), "tensors": described})
        key = (request, tuple(tensors))
        if plan := self.cached_plan(key):
            return plan
        answer = await self.request_plan(request, op)
        outputs = [TensorInfo(name, code, tuple(shape)) for name, code, shape in answer["outputs"]]
        plan = Plan.of(op, tensors, answer["params"], outputs)
        if len(request) <= MAX_CACHED_REQUEST_BYTES:
            self.cache_plan(key, plan)
        return plan

    async def request_plan(
        self, request: bytes, what: str, *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """A lane's answer to a question about `what`.

        Args:
            limit_s: seconds that a lane may work on this question; None means `call_timeout_s`.
                A lane that has not answered `grace_s` later is killed and restarted.

        Raises:
            Problem: as `plan`.
        """
        if self._asking >= self.settings.max_queue:
            raise Busy(f"{self._asking} calls wait to be checked already", retry_after_s=1)
        self._asking += 1
        try:
            async with asyncio.timeout(self.settings.call_timeout_s):
                answer = await self._request_plan(request, limit_s or self.settings.call_timeout_s)
        except TimeoutError:
            raise TimedOut(
                f"{what} was not checked within {self.settings.call_timeout_s:g} s"
            ) from None
        finally:
            self._asking -= 1
        if problem := answer.get("problem"):
            raise Problem.from_json(problem["status"], problem)
        return answer

    def cached_plan(self, key: Hashable) -> Plan | None:
        """The plan remembered under `key`, if there is one."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def cache_plan(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan; the least recently used give way."""
        self._plans[key] = plan
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str,
        *,
        beside: Slot | None = None,
        lane_name: str = "",
        deferred_nbytes: int = 0,
    ) -> Slot:
        """Room for a call on the least loaded lane, or on the one named `lane_name`, or, urgently, on the
        lane that has `beside`.

        Args:
            deferred_nbytes: bytes that the slot's `Arena.acquire_deferred` will give later.

        Raises:
            TooLarge: more than a call may have.
            Busy: no room within `timeout_s`, or too many wait already, or the user has too much in
                flight; he may always have one call.
            Unavailable: no lane lives.
        """
        if beside is not None:
            return await beside.arena.acquire(nbytes, timeout_s, user, urgent=True)
        lane = self._lane_named(lane_name) if lane_name else self._least_loaded()
        has, limit = self.nbytes_of(user), self.settings.user_max_bytes
        whole = nbytes + deferred_nbytes
        if has and has + whole > limit:
            raise Busy(
                f"{user} has {has} bytes in flight and asks for {whole}, at most {limit} are "
                "allowed together",
                retry_after_s=max(
                    other.arena.refill_s(user, has + whole - limit) for other in self._lanes
                ),
            )
        lane.check_open()
        return await lane.arena.acquire(nbytes, timeout_s, user, deferred_nbytes=deferred_nbytes)

    def nbytes_of(self, user: str) -> int:
        """Bytes of inputs and outputs that the user has in flight, or waits for."""
        has = 0
        for lane in self._lanes:
            has += lane.arena.nbytes_of(user)
        return has

    async def run_on_lane(
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
        lane = next(lane for lane in self._lanes if lane.arena is source.arena)
        return await lane.run_call(plan, source, target, target_offset, deadline)

    @property
    def all_lanes(self) -> Sequence[Lane]:
        """All lanes, for jobs."""
        return self._lanes

    def free_tensors(self, lane: str, numbers: Iterable[int]) -> None:
        """Let a lane forget tensors that were kept there."""
        self._lane_named(lane).free_tensors(numbers)

    def open_lanes(self) -> list[str]:
        """Lanes that take calls, the least loaded first.

        Raises:
            Unavailable: there is none.
        """
        self._least_loaded().check_open()
        return [lane.name for lane in sorted(self._lanes, key=_load) if lane.state not in CLOSED]

    def memory_nbytes_of(self, lane: str) -> int:
        """Bytes that tensors may take there; 0 until it was ready once."""
        return self._lane_named(lane).hello.get("memory_nbytes", 0)

    def status(self) -> list[LaneStatus]:
        """Every lane."""
        return [lane.status() for lane in self._lanes]

    def _add_lane(self, device: str) -> None:
        try:
            self._lanes.append(Lane(device, self.settings, self._on_change))
        except OSError as error:
            raise EngineError(
                f"no lane can start: {device}: its arena of {int(self.settings.arena_bytes)} "
                f"bytes cannot be made: {error.strerror}"
            ) from None

    def _least_loaded(self) -> Lane:
        """Among those that are ready; else among those that will be."""
        return min(self._lanes, key=_load)

    def _lane_named(self, name: str) -> Lane:
        return next(lane for lane in self._lanes if lane.name == name)

    async def _request_plan(self, request: bytes, limit_s: float) -> dict[str, Any]:
        while True:
            await self._until(lambda: self.ready or not self._any_starting())
            lane = self._least_loaded()
            lane.check_open()
            try:
                return await lane.request_plan(request, limit_s)
            except WorkerLost:
                await asyncio.sleep(0)  # its state changes next

    def _any_starting(self) -> bool:
        return any(lane.state in ("starting", "restarting") for lane in self._lanes)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _on_change(self, lane: Lane) -> None:
        if lane.state != "ready":
            self.on_lost(lane.name)
        self._changed.set()
        self._changed = asyncio.Event()


def _load(lane: Lane) -> tuple[bool, bool, int, int, int]:
    """The lowest is who can take a call soonest: ready ones before those that will be."""
    return (
        lane.state != "ready",
        lane.state in CLOSED,
        lane.load,
        lane.arena.stats().used,
        lane.calls,  # idle ones take turns
    )
