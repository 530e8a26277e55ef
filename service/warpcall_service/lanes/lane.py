"""One lane: a device, its arena, its queue, and a worker process, replaced when it dies."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from warpcall.errors import Busy, Problem, TimedOut, Unavailable
from warpcall_service.lanes.activity import Activity
from warpcall_service.lanes.arena import Arena, Slot, share_of
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.fair_queue import FairQueue
from warpcall_service.lanes.lane_call import SHORT_CALL_S, Call, Outcome, may_follow
from warpcall_service.lanes.messages import Done, Hello
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import CLOSED, LaneStatus, State, Timing
from warpcall_service.lanes.worker_handle import WorkerHandle, WorkerLost
from warpcall_service.processes.lone_calls import LoneCalls
from warpcall_service.processes.spawn import StartProcess
from warpcall_service.settings import Settings

RESERVE_SHARE = 1 / 32  # of an arena for small calls only
MAX_RESERVE_BYTES = 64 << 20  # with it the largest small call has 1 MiB
START_S = 5.0  # assumed for Retry-After until a start of the worker was measured

log = logging.getLogger("warpcall.lane")


class Lane:
    """A device, its worker process, and the calls that wait for it.

    Args:
        device: "cpu", "cuda:<i>", or "auto" for the device that the worker process finds.
        on_change: called when the state changes.
        start: starts the worker process.

    Attributes:
        hello: the first message of the last worker process that became ready.
        device_lease: gives a job the device between calls.
        activity: what the lane did during the last hour.
        on_unanswered: as `LocalEngine.on_unanswered`.
    """

    def __init__(
        self,
        device: str,
        settings: Settings,
        on_change: Callable[[Lane], None],
        start: StartProcess,
    ) -> None:
        self.name = device
        self.state: State = "starting"
        self.reason = "its process is starting"
        self.hello: Hello = {}
        nbytes = int(settings.arena_bytes)
        reserve = min(int(nbytes * RESERVE_SHARE), MAX_RESERVE_BYTES)
        self.arena = Arena(nbytes, share_of, reserve, settings.max_queue)
        self._settings = settings
        self._on_change = on_change
        self.on_unanswered: Callable[[str, str, float], None] = lambda user, op, seconds: None
        self._start_process = start
        self._loop = asyncio.get_running_loop()
        self._worker: WorkerHandle | None = None
        self._queue: FairQueue[Call] = FairQueue()
        self._sent: deque[Call] = deque()
        self._lone_calls = LoneCalls(self._loop)
        self.activity = Activity()
        self.device_lease = DeviceLease(
            self._occupied,
            lambda: self._queue.count > 0,
            self._send_waiting,
            self.activity.add_block,
            called_at=lambda: self.activity.called_at,
            is_starting=lambda: bool(self.warming) or self.state in ("starting", "restarting"),
        )
        self._sent_nbytes = 0
        self._freed: list[int] = []  # stored tensors that the worker does not know to be free yet
        self._last_id = 0
        self._received_id = 0  # of the last call that the last process may have received
        self._restarts = 0
        self._last_restart, self._last_restart_ms = "", 0
        self._deaths = 0  # of worker processes since a call was answered
        self._mean_call_s = self._mean_compile_s = 0.0
        self._start_s = START_S
        self._restart_at = 0.0  # when a new worker process is started, by time.monotonic()
        self._keep_memory_task = self._loop.create_task(self.arena.memory.keep(device))
        self._keep_running_task = self._loop.create_task(self._keep_worker_running())

    @property
    def load(self) -> int:
        """Calls and requests for memory that a new call would wait for."""
        return self.arena.waiting + self._queue.count + len(self._sent)

    @property
    def warming(self) -> str:
        """How many kernels were compiled or loaded ahead; empty if none are now."""
        return self._worker.warming if self._worker else ""

    @property
    def calls(self) -> int:
        """The number of calls that were sent to its worker processes so far."""
        return self._last_id

    @property
    def retry_after_s(self) -> float:
        """Estimated seconds until a worker process is ready again."""
        return max(0.0, self._restart_at - time.monotonic()) + self._start_s

    def status(self) -> LaneStatus:
        """The lane's present state."""
        arena = self.arena.stats()
        return LaneStatus(
            name=self.name,
            state=self.state,
            reason=self.reason or self.warming,
            warming=bool(self.warming),
            device=self.hello.get("label", ""),
            pid=self._worker.pid if self._worker else None,
            restarts=self._restarts,
            last_restart=self._last_restart,
            last_restart_ms=self._last_restart_ms,
            queued=self._queue.count,
            in_flight=len(self._sent),
            plan_requests=self._worker.pending_requests if self._worker else 0,
            arena_used=arena.used,
            arena_free=arena.free,
            arena_waiting=arena.waiting,
        )

    async def run_call(
        self, plan: Plan, source: Slot, target: Slot, target_offset: int, deadline: float
    ) -> Timing:
        """Queue a call or send it, and wait for it: see `LocalEngine.run_on_lane`."""
        done: asyncio.Future[Timing] = self._loop.create_future()
        call = self.submit(plan, source, target, target_offset, deadline, done)
        try:
            return await done
        finally:
            if done.cancelled():
                self._drop(call)
            elif done.done():
                done.exception()  # read it, or asyncio would log it after a cancellation

    def submit(
        self,
        plan: Plan,
        source: Slot,
        target: Slot,
        target_offset: int,
        deadline: float,
        outcome: Outcome,
    ) -> Call:
        """Queue a call or send it: see `LocalEngine.submit`."""
        self.check_open()
        if self._queue.count >= self._settings.max_queue:
            raise Busy(
                f"{self._queue.count} calls wait for {self.name} already, it lets no more wait",
                retry_after_s=max(1.0, self._mean_call_s * self._queue.count),
            )
        if (left_s := deadline - time.monotonic()) <= 0:
            raise TimedOut(f"{plan.op} was not begun, its deadline had passed")
        call = Call(plan, source, target, target.offset + target_offset, deadline, outcome)
        if not self._queue.count and self._send(call):
            self._queue.charge(source.user, call.nbytes)
        else:
            self._enqueue(call)
        call.timer = self._loop.call_later(left_s, self._on_deadline, call)
        return call

    def drop(self, outcome: Outcome) -> None:
        """Drop the call with this outcome, which nobody needs, if it was not sent."""
        found = next((call for call in self._queue.items() if call.done is outcome), None)
        if found is not None:
            self._drop(found)

    async def request_plan(self, request: bytes, limit_s: float) -> dict[str, Any]:
        """Send a request to the planning thread: see `WorkerHandle.request_plan`.

        Raises:
            WorkerLost: there is no worker process, or it ended before it replied.
        """
        if self._worker is None or self.state != "ready":
            raise WorkerLost(self.reason)
        return await self._worker.request_plan(request, limit_s)

    def free_tensors(self, numbers: Iterable[int] = ()) -> None:
        """Free stored tensors, once the calls sent before have run."""
        self._freed += numbers
        if self._freed and self._worker is not None:
            self._worker.free_tensors(self._freed)

    def check_open(self) -> None:
        """Raise Unavailable if this lane is failed, quarantined or stopped."""
        if self.state in CLOSED:
            raise self._unavailable(f"{self.name} cannot run calls: {self.reason}")

    def kill(self, reason: str) -> None:
        """Kill the worker process; a new one is started."""
        if self._worker is not None:
            log.error("%s is killed: %s", self.name, reason)
            self.reason = reason
            self._worker.kill()

    async def drained(self) -> None:
        """Wait until no call waits or runs."""
        while self._queue.count or self._sent:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End the worker process, even if a call runs, and unmap the arena."""
        await self.close("stopped", "the server is stopping")
        self.arena.memory.stop()
        await asyncio.wait((self._keep_memory_task,))
        self.arena.memory.close()

    async def close(self, state: State, reason: str) -> None:
        """End the worker process and start no other; `reason` is in the problems of calls."""
        self._keep_running_task.cancel()
        await asyncio.wait((self._keep_running_task,))
        self._change(state, reason)
        if self._worker is not None:
            await self._worker.end(gracefully=state == "stopped" and bool(self._sent))
            self._worker = None
        self._refuse_all(self._unavailable(reason))

    # The worker process

    async def _keep_worker_running(self) -> None:
        """Replace the worker process whenever it is lost, until this task is cancelled.

        No exception may end this loop: the lane would keep its state for ever, and no call or job
        would learn why it is not served.
        """
        while True:
            try:
                # The start of a process would disturb what is timed.
                await self.device_lease.wait_released()
                await self._run_worker()
                self._after_death(await self._end_worker())
            except Exception:
                log.exception("%s cannot replace its process", self.name)
                self._restart_at = time.monotonic() + self._settings.retry_pause_s
            await asyncio.sleep(max(0.0, self._restart_at - time.monotonic()))

    async def _run_worker(self) -> None:
        """Start a worker process; return once it is lost, or if it cannot be started."""
        began = time.monotonic()
        try:
            worker = self._worker = WorkerHandle(
                *(self.name, self.arena, self._settings, self._on_done, self.kill),
                *(self.device_lease.notify, self._start_process),
            )
            hello = await worker.hello(self._settings.start_timeout_s)
            self._start_s = time.monotonic() - began
            self._become_ready(hello)
            await worker.lost
            self._change("restarting", self.reason)
        except WorkerLost as error:
            self.reason = str(error)
        except Exception as error:
            log.exception("%s failed unexpectedly", self.name)
            self.reason = f"it failed: {type(error).__name__}: {error}"

    async def _end_worker(self) -> str:
        """End what is left of the worker process, and return how it ended."""
        worker, how = self._worker, ""
        if worker is not None:
            how = await worker.end()
            self._worker, self._received_id = None, worker.last_sent
        return how

    def _become_ready(self, hello: Hello) -> None:
        self.hello = hello
        self.name = hello["device"]  # "auto" has become a device by now
        log.info("%s is ready after %.1f s", hello["label"], self._start_s)
        self._change("ready", "")
        self._send_waiting()

    def _after_death(self, how: str) -> None:
        """Fail the call that ran, queue the others that were sent, and set the next start."""
        self._restarts += 1
        self._deaths += 1
        reason = self.reason or f"its process ended ({how}) and is being replaced"
        log.error("%s was lost: %s", self.name, reason)
        self._last_restart, self._last_restart_ms = reason, time.time_ns() // 1_000_000
        settings = self._settings
        if self._deaths > settings.max_restarts:
            pause_s = settings.retry_pause_s
        else:
            soon = self._deaths == 1 and bool(self.hello)  # it had worked until then
            pause_s = 0.0 if soon else settings.restart_pause_s * 2 ** (self._deaths - 2)
        self._restart_at = time.monotonic() + pause_s
        self._freed.clear()
        sent, self._sent, self._sent_nbytes = self._sent, deque(), 0
        for position, call in enumerate(sent):
            if position == 0 and call.id <= self._received_id:  # it ran, or was next: in order
                call.fail(self._unavailable(f"{self.name} was lost while it ran {call.plan.op}"))
            if call.done.done():
                call.release()
            else:
                self._enqueue(call, urgent=True)
        if self._deaths > settings.max_restarts:
            self._change("failed", f"its process died {self._deaths} times in a row; {reason}")
            self._refuse_all(self._unavailable(f"{self.name} cannot run calls: {self.reason}"))
        else:
            self._change("restarting", reason)

    def _change(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self.device_lease.notify()
        self._on_change(self)

    def _refuse_all(self, problem: Problem) -> None:
        for call in (*self._sent, *self._queue.clear()):
            call.fail(problem)
            call.release()
        self._sent.clear()
        self.arena.refuse_waiting(problem)

    def _unavailable(self, detail: str) -> Unavailable:
        return Unavailable(detail, retry_after_s=math.ceil(self.retry_after_s))

    # Calls

    def _occupied(self) -> bool:
        """Whether the worker process runs calls, or is being started."""
        return bool(self._sent) or self.state in ("starting", "restarting")

    def _enqueue(self, call: Call, *, urgent: bool = False) -> None:
        """Put a call into the queue; an urgent one comes before all others."""
        call.entry = self._queue.enqueue(call.source.user, call.nbytes, call, urgent=urgent)

    def _send_waiting(self) -> None:
        """Send calls from the queue, as many as the worker process may have."""
        while (entry := self._queue.peek()) and self._send(entry.item):
            self._queue.dequeue(entry)
            entry.item.entry = None

    def _send(self, call: Call) -> bool:
        """Send a call to the worker process, unless it has enough, or a job has the device."""
        sent = self._sent
        if self.state != "ready" or self._worker is None or self.device_lease.blocks_calls:
            return False
        means = self._mean_call_s, self._mean_compile_s
        if sent and not may_follow(call, sent, self._sent_nbytes, *means):
            return False
        call.id = self._last_id = self._last_id + 1
        if not self._worker.send(
            call.id,
            call.source.offset,
            call.target_offset,
            call.deadline,
            call.plan.message,
            at_once=not sent,
        ):
            return False  # tried again at the next reply, or by the next process
        is_short = self._mean_call_s <= SHORT_CALL_S
        self._lone_calls.sent(is_short=is_short, beside_others=bool(sent))
        sent.append(call)
        self._sent_nbytes += call.nbytes
        return True

    def _on_done(self, done: Done, problem: bytes) -> None:
        call_id, began, h2d_ms, kernel_ms, d2h_ms, compile_ms, _ = done
        if not self._sent or self._sent[0].id != call_id:
            self.kill(f"it answered call {call_id} out of order")
            return
        call = self._sent.popleft()
        self._sent_nbytes -= call.nbytes
        self._deaths = 0
        self._lone_calls.answered(has_copied=h2d_ms > 0)
        call.release()
        device_s = (h2d_ms + kernel_ms + d2h_ms) * 1e-3
        if problem or call.done.done():
            self.on_unanswered(call.source.user, call.plan.op, kernel_ms * 1e-3)
        if problem:
            members = json.loads(problem)
            call.fail(Problem.from_json(members["status"], members))
        elif not call.done.done():
            self._mean_call_s += (device_s - self._mean_call_s) * 0.1
            queue_ms = (began - call.began) * 1e3
            times = (queue_ms, h2d_ms, kernel_ms, d2h_ms)
            call.done.set_result(Timing(*times, self.hello["label"], compile_ms))
        self._mean_compile_s += (compile_ms * 1e-3 - self._mean_compile_s) * 0.1
        if compile_ms:  # calls of others come before those that this user has waiting
            self._queue.charge_seconds(call.source.user, compile_ms * 1e-3)
        self.activity.add_call(device_s)
        if self._freed:
            self.free_tensors()
        if self._queue.count:
            self._send_waiting()
        elif not self._sent:
            self._queue.reset()
        self.device_lease.notify()

    def _drop(self, call: Call) -> None:
        """Drop a call whose caller left, if it was not sent; otherwise the worker finishes it."""
        if call.entry is not None:
            self._queue.remove(call.entry)
            call.entry = None
            call.release()

    def _on_deadline(self, call: Call) -> None:
        limit_s = call.deadline - call.began
        if call in self._sent:
            call.fail(TimedOut(f"{call.plan.op} was not done within {limit_s:.3g} s"))
            call.timer = self._loop.call_later(self._settings.grace_s, self._on_overdue, call)
        else:
            call.fail(TimedOut(f"{call.plan.op} was not begun within {limit_s:.3g} s"))
            self._drop(call)

    def _on_overdue(self, call: Call) -> None:
        """Kill the worker if this call runs; if it waits behind another, that one has a timer."""
        if self._sent and self._sent[0] is call:
            self.kill(f"{call.plan.op} ran {self._settings.grace_s:g} s past its deadline")
