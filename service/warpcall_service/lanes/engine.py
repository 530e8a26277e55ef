"""The local engine: starts the lanes of this machine and chooses a lane for each call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from warpcall.errors import Busy, Problem, TimedOut
from warpcall.wire import TensorInfo
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.device_watch import watch_all
from warpcall_service.lanes.lane import Lane
from warpcall_service.lanes.lane_call import Outcome
from warpcall_service.lanes.messages import frame
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import CLOSED, LaneStatus, Timing
from warpcall_service.lanes.worker_handle import WorkerLost
from warpcall_service.processes.spawn import ChildProcess, StartProcess
from warpcall_service.quotas import Quotas
from warpcall_service.settings import Settings

BYTES = "user_max_bytes"  # a quota
MAX_PLANS = 1024  # in the cache: at most some 10 MB with their keys and messages
MAX_CACHED_REQUEST_BYTES = 4 << 10  # plans of longer requests are not cached


class EngineError(Exception):
    """The engine cannot start. The message is for the operator."""


class LocalEngine:
    """The lanes of this machine, and a cache of plans.

    Args:
        start: starts worker processes.

    Attributes:
        catalog: every op's declaration from `Op.describe`, with dtypes as wire codes; set by
        `start`.
        quotas: the limits of each user, which `auth/sync.py` renews.
        on_lost: called with the name of each lane that loses its worker process, and with it the
            tensors that were stored there.
        on_unanswered: called with the user, the op and the kernel's seconds of each call that a
            worker ran and that failed, or whose outputs nobody waits for any more.
    """

    def __init__(self, settings: Settings, start: StartProcess = ChildProcess) -> None:
        self.settings = settings
        self.quotas = Quotas(settings)
        self._start_process = start
        self.catalog: list[dict[str, Any]] = []
        self.on_lost: Callable[[str], None] = lambda lane: None
        self.on_unanswered: Callable[[str, str, float], None] = lambda user, op, seconds: None
        self._lanes: list[Lane] = []
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._plan_requests = 0  # that wait for a reply
        self._changed = asyncio.Event()  # set and replaced when a lane's state changes
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the lanes, and wait until one is ready.

        Raises:
            EngineError: no lane can start.
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
            self._watching = asyncio.create_task(watch_all(self._lanes))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Wait for the calls under way, for at most `drain_timeout_s`, and end the lanes."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await asyncio.gather(*(lane.drained() for lane in self._lanes))
        except TimeoutError:
            pass  # callers that still wait get a problem: the server is stopping
        await asyncio.gather(*(lane.stop() for lane in self._lanes))

    @property
    def ready(self) -> bool:
        """Whether a lane is ready."""
        return any(lane.state == "ready" for lane in self._lanes)

    async def plan_call(
        self, op: str, tensors: Sequence[TensorInfo], params: Mapping[str, Any]
    ) -> Plan:
        """Check a call before its body is read, and lay out its outputs.

        If the lane's worker process is lost meanwhile, another one gets the request.

        Raises:
            NotFound: there is no such op.
            Busy: too many calls wait for their plans.
            InvalidInput: the tensors or parameters do not fit the op.
            Unavailable: all lanes are failed, quarantined or stopped.
            TimedOut: there was no reply within `call_timeout_s`.
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

    async def request_plan(self, request: bytes, what: str) -> dict[str, Any]:
        """Send a framed request to the planning thread of a lane's worker, and return the reply.

        The thread may work on it for `call_timeout_s`. A worker that has not replied `grace_s`
        later is killed and replaced.

        Args:
            what: names the request in messages.

        Raises:
            Problem: as `plan_call`.
        """
        if self._plan_requests >= self.settings.max_queue:
            raise Busy(f"{self._plan_requests} calls wait to be checked already", retry_after_s=1)
        self._plan_requests += 1
        try:
            async with asyncio.timeout(self.settings.call_timeout_s):
                answer = await self._request_plan(request, self.settings.call_timeout_s)
        except TimeoutError:
            raise TimedOut(
                f"{what} was not checked within {self.settings.call_timeout_s:g} s"
            ) from None
        finally:
            self._plan_requests -= 1
        if problem := answer.get("problem"):
            raise Problem.from_json(problem["status"], problem)
        return answer

    def cached_plan(self, key: Hashable) -> Plan | None:
        """The cached plan with this key, or None."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def cache_plan(self, key: Hashable, plan: Plan) -> None:
        """Cache a plan; the least recently used plan is dropped if the cache is full."""
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
    ) -> Slot:
        """Allocate memory for a call on the least loaded lane.

        Args:
            beside: allocate in the arena of this slot, before requests that are not urgent.
            lane_name: allocate on this lane.

        Raises:
            TooLarge: one call may not use so much.
            Busy: no memory was freed within `timeout_s`, or too many requests wait already, or the
                user would have more than `user_max_bytes` in flight in several calls.
            Unavailable: all lanes are failed, quarantined or stopped.
        """
        if beside is not None:
            return await beside.arena.acquire(nbytes, timeout_s, user, urgent=True)
        lane = self._lane_named(lane_name) if lane_name else self._least_loaded()
        has, limit = self.nbytes_of(user), self.quotas.limit(user, BYTES)
        if has and has + nbytes > limit:
            raise Busy(
                f"{user} has {has} bytes in flight and asks for {nbytes}, at most {limit} are "
                f"allowed together by the quota {BYTES}",
                retry_after_s=max(
                    other.arena.refill_s(user, has + nbytes - int(limit)) for other in self._lanes
                ),
            )
        lane.check_open()
        return await lane.arena.acquire(nbytes, timeout_s, user)

    def acquire_at_once(self, nbytes: int, user: str) -> Slot | None:
        """Allocate memory for a call of an op, as `acquire`; None if that must wait, or is refused,
        or if the user has used up the device time of the day."""
        lane = self._lanes[0] if len(self._lanes) == 1 else self._least_loaded()
        has = self.nbytes_of(user)
        if lane.state != "ready" or (has and has + nbytes > self.quotas.limit(user, BYTES)):
            return None
        if not self.quotas.has_device_time(user):
            return None
        return lane.arena.acquire_at_once(nbytes, user)

    def submit(
        self,
        plan: Plan,
        source: Slot,
        target: Slot,
        target_offset: int,
        deadline: float,
        outcome: Outcome,
    ) -> None:
        """Run a call as `run_on_lane`, which says what the arguments are and what it may raise.

        Args:
            outcome: learns how the call ended, after this has returned.

        Raises:
            Busy, Unavailable, TimedOut: the call was not accepted; `outcome` is not used then.
        """
        self._lane_of(source).submit(plan, source, target, target_offset, deadline, outcome)

    def drop(self, source: Slot, outcome: Outcome) -> None:
        """Drop the call of `submit` with this outcome unless it was sent to the worker process."""
        self._lane_of(source).drop(outcome)

    def nbytes_of(self, user: str) -> int:
        """Bytes of inputs and outputs that the user has in flight or waits for."""
        has = 0
        for lane in self._lanes:
            has += lane.arena.nbytes_of(user)
        return has

    async def run_on_lane(
        self, plan: Plan, source: Slot, target: Slot, target_offset: int, deadline: float
    ) -> Timing:
        """Run a call on the lane that has its slots.

        The inputs lie at the start of `source`, and the outputs are written to `target`. Both may
        be the same slot; the two regions must not overlap. The slots stay allocated until the
        worker process has finished, even if the caller releases them, leaves or times out before.
        If the caller is cancelled before the call is sent to the worker, the call is dropped.

        Args:
            target_offset: where the output region begins in `target`; a multiple of 8.
            deadline: by `time.monotonic()`.

        Raises:
            KernelFailed: the op raised an exception, or ran out of device memory.
            InvalidInput: the op refused the values of its inputs.
            Busy: too many calls wait for the lane.
            Unavailable: the worker process was lost while it ran the call.
            TimedOut: the deadline passed.
        """
        lane = self._lane_of(source)
        return await lane.run_call(plan, source, target, target_offset, deadline)

    @property
    def all_lanes(self) -> Sequence[Lane]:
        """All lanes, in any state."""
        return self._lanes

    def free_tensors(self, lane: str, numbers: Iterable[int]) -> None:
        """Free stored tensors of a lane, by their numbers."""
        self._lane_named(lane).free_tensors(numbers)

    def open_lanes(self) -> list[str]:
        """Names of the lanes that take calls, the least loaded first.

        Raises:
            Unavailable: all lanes are failed, quarantined or stopped.
        """
        self._least_loaded().check_open()
        return [lane.name for lane in sorted(self._lanes, key=_load) if lane.state not in CLOSED]

    def memory_nbytes_of(self, lane: str) -> int:
        """Bytes that tensors may use on a lane's device; 0 until the lane was ready once."""
        return self._lane_named(lane).hello.get("memory_nbytes", 0)

    def status(self) -> list[LaneStatus]:
        """The status of every lane."""
        return [lane.status() for lane in self._lanes]

    def _add_lane(self, device: str) -> None:
        try:
            lane = Lane(device, self.settings, self._on_change, self._start_process)
            lane.on_unanswered = lambda *what: self.on_unanswered(*what)
            self._lanes.append(lane)
        except OSError as error:
            raise EngineError(
                f"no lane can start: {device}: its arena of {int(self.settings.arena_bytes)} "
                f"bytes cannot be made: {error.strerror}"
            ) from None

    def _least_loaded(self) -> Lane:
        """The least loaded lane of those that are ready, or else of those that will be."""
        return min(self._lanes, key=_load)

    def _lane_of(self, slot: Slot) -> Lane:
        arena = slot.arena
        for lane in self._lanes:
            if lane.arena is arena:
                return lane
        raise LookupError("the slot belongs to no lane")

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
                await asyncio.sleep(0)  # the lane's state changes next

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
    """The order in which lanes are chosen: the lowest can probably run a call soonest."""
    return (
        lane.state != "ready",
        lane.state in CLOSED,
        lane.load,
        lane.arena.stats().used,
        lane.calls,  # so that idle lanes alternate
    )
