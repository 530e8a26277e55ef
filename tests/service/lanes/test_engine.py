"""The engine over a real lane: what it guarantees while the lane's process is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import time
import tracemalloc
from collections.abc import Iterator

import psutil
import pytest
import uvloop

from bench.descriptors import held
from tests.forks import forked_workers
from tests.service.lanes.engines import PATIENCE_S, call, lane, permute, process, started, until
from tests.suspended import suspend, suspended
from warpcall.errors import Busy, Problem, TimedOut
from warpcall.wire import TensorInfo
from warpcall_service.lanes.engine import EngineError, LocalEngine
from warpcall_service.lanes.lane_call import MAX_AHEAD
from warpcall_service.lanes.messages import frame
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import LaneStatus
from warpcall_service.processes.spawn import ChildProcess
from warpcall_service.settings import Settings

pytestmark = pytest.mark.slow

SLOW_CASES = 120_000  # of a job whose check takes some seconds, also on a busy machine longer than the deadlines
MARGIN_S = 10.0  # how late a deadline may be noticed on a busy machine
QUICK = {"restart_pause_s": 0.01, "retry_pause_s": 0.05}


@pytest.fixture(scope="module", autouse=True)
def _workers_are_forks() -> Iterator[None]:
    with forked_workers():
        yield


@contextlib.contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """Only so many more descriptors can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = []
    try:
        for _ in range(number):
            lowest.append(os.dup(0))
        # The limit is on the number of a descriptor, and the lowest free one is taken first.
        end = os.dup(0)
        os.close(end)
        resource.setrlimit(resource.RLIMIT_NOFILE, (end, hard))
        for fd in lowest:
            os.close(fd)
        lowest.clear()
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in lowest:
            os.close(fd)


def test_no_more_plans_than_allowed_wait_for_a_lane_that_is_replaced() -> None:
    async def play() -> tuple[Plan, Plan]:
        engine = LocalEngine(Settings.load(devices="cpu", arena_bytes=1 << 20, max_queue=1))

        def plan(nbytes: int) -> asyncio.Task[Plan]:
            x = TensorInfo("x", "U8", (nbytes,))
            return asyncio.create_task(engine.plan_call("permute", [x], {"dims": [0]}))

        await engine.start()
        try:
            pid = engine.status()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            first = plan(1)
            await until(lambda: engine.status()[0].restarts == 1)
            restarted = engine.status()[0]
            assert "its process ended (killed by SIGKILL)" in restarted.last_restart
            assert 0 <= time.time() - restarted.last_restart_ms / 1000 < 60
            with pytest.raises(Busy, match="1 calls wait to be checked"):
                await plan(2)
            return await first, await plan(2)
        finally:
            await engine.stop()

    plans = asyncio.run(play())

    assert [plan.outputs[0].shape for plan in plans] == [(1,), (2,)]


def test_a_question_waits_for_those_before_it_without_being_counted_as_stuck() -> None:
    """The lane answers in order: a plan behind a slow check has its time once that is answered."""
    sweep = {
        "shapes": [[n, 7] for n in range(1, SLOW_CASES)],
        "dtypes": ["F32"],
        "params": {"dims": [[1, 0]]},
    }
    check = {"op": "permute", "precision": "quick", "sweep": sweep, "max_cases": SLOW_CASES}
    request = frame({"job": {**check, "host_bytes": 1 << 30}})

    async def play() -> tuple[LaneStatus, LaneStatus]:
        async with started(call_timeout_s=2.0, grace_s=1.0) as engine:
            before = lane(engine)
            slow = asyncio.create_task(engine.all_lanes[0].request_plan(request, 3 * PATIENCE_S))
            await asyncio.sleep(0.1)
            behind = [asyncio.create_task(permute(engine, n)) for n in range(1, 4)]
            for caller in behind:
                with pytest.raises(TimedOut):
                    await caller
            assert not slow.done()
            assert "cases" in await slow
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with contextlib.suppress(TimedOut):
                        await permute(engine, 7)
                        return before, lane(engine)

    before, after = asyncio.run(play())

    assert after.pid == before.pid
    assert after.restarts == 0


def test_questions_to_a_lane_that_stands_still_do_not_pile_up() -> None:
    request = {"op": "permute", "params": {}, "tensors": []}

    async def play() -> int:
        async with started() as engine:
            suspend(process(engine))
            tracemalloc.start()
            for _ in range(100):
                caller = asyncio.create_task(
                    engine.request_plan(frame({**request, "x": "x" * 2**20}), "x")
                )
                await asyncio.sleep(0.001)
                caller.cancel()
                await asyncio.wait((caller,))
            return tracemalloc.get_traced_memory()[0]

    try:
        nbytes = asyncio.run(play())
    finally:
        tracemalloc.stop()

    assert nbytes < 10 << 20, "of 100 MiB that was requested by callers who have left"


def test_a_start_without_descriptors_is_tried_again_and_leaves_none_open() -> None:
    """Whichever of the descriptors that a start takes is the one that cannot be had."""

    async def play() -> list[str]:
        reasons = []
        async with started(**QUICK) as engine:
            before = held(os.getpid())
            for number in range(8):
                restarts, pid = lane(engine).restarts, process(engine).pid
                with descriptors_left(number):
                    os.kill(pid, signal.SIGKILL)
                    await until(
                        lambda more=restarts + 1: (  # type: ignore[misc]  # a default binds it
                            lane(engine).restarts > more
                            or (lane(engine).restarts == more and engine.ready)
                        )
                    )
                    reasons.append(lane(engine).reason)
                await until(lambda: engine.ready)
                await permute(engine, 5)
                assert held(os.getpid()) == before
        return reasons

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        reasons = runner.run(play())

    failed = ["its process cannot be started: [Errno 24] Too many open" in r for r in reasons]
    assert [bool(reason) for reason in reasons] == failed
    assert (failed[0], failed[-1]) == (True, False), "from some number on it can be started"


def test_a_call_whose_deadline_passes_in_the_queue_of_its_lane_is_answered_and_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process has as many calls as it may have and answers none, so one more stays queued."""
    # More would be sent ahead of calls that are short, which depends on the machine.
    monkeypatch.setattr("warpcall_service.lanes.lane_call.SHORT_CALL_S", 0.0)

    async def queued(
        engine: LocalEngine, plan: Plan, timeout_s: float
    ) -> tuple[LaneStatus, TimedOut]:
        """How the lane was while the call was queued, if it was seen, and how the call ended."""
        late = asyncio.create_task(call(engine, plan, timeout_s))
        await until(lambda: lane(engine).queued == 1 or late.done(), 0)
        waiting = lane(engine)
        with pytest.raises(TimedOut) as raised:
            await asyncio.wait_for(late, timeout_s + MARGIN_S)
        return waiting, raised.value

    async def play() -> tuple[float, TimedOut, LaneStatus, LaneStatus, LaneStatus]:
        async with started() as engine:
            plan = await permute(engine, 5)
            await call(engine, plan, PATIENCE_S)  # none is sent ahead before one was answered
            with suspended(process(engine)):
                sent = [
                    asyncio.create_task(call(engine, plan, PATIENCE_S)) for _ in range(MAX_AHEAD)
                ]
                await until(lambda: lane(engine).in_flight == MAX_AHEAD)
                before = lane(engine)
                for deadline_s in (1.0, 4.0, 16.0):  # a busy machine may stop this process for one
                    waiting, problem = await queued(engine, plan, deadline_s)
                    if waiting.queued:
                        break
                after = lane(engine)
            await asyncio.gather(*sent)
            return deadline_s, problem, before, waiting, after

    deadline_s, problem, before, waiting, after = asyncio.run(play())

    assert problem.status == 504
    assert str(problem) == f"permute was not begun within {deadline_s:g} s"
    assert (before.queued, waiting.queued, after.queued) == (0, 1, 0)
    assert before.arena_used == after.arena_used < waiting.arena_used, "its memory came back"
    assert after.in_flight == MAX_AHEAD


def test_a_lane_that_is_stopped_while_its_lost_process_is_ended_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = ChildProcess.wait

    async def play() -> psutil.Process:
        ending = asyncio.Event()

        async def wait_long(self: ChildProcess) -> None:
            monkeypatch.setattr(ChildProcess, "wait", wait)
            ending.set()
            await asyncio.sleep(PATIENCE_S)

        async with started() as engine:
            lost = process(engine)
            monkeypatch.setattr(ChildProcess, "wait", wait_long)
            lost.kill()
            await ending.wait()
        return lost

    assert not asyncio.run(play()).is_running()


def test_a_failure_that_nobody_expected_does_not_end_the_replacing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault that nobody thought of")

    async def play() -> str:
        async with started(**QUICK) as engine:
            with monkeypatch.context() as patched:
                patched.setattr(subprocess, "Popen", fail)
                process(engine).kill()
                await until(lambda: lane(engine).restarts > 2)
                reason = lane(engine).reason
            await until(lambda: engine.ready)
            await permute(engine, 5)
            return reason

    reason = asyncio.run(play())

    assert "RuntimeError: a fault that nobody thought of" in reason
    assert any(record.exc_info for record in caplog.records)


def test_a_failure_in_what_follows_a_death_does_not_end_the_replacing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with started(**QUICK) as engine:
            failures = iter([RuntimeError("a fault in what follows")])

            def fail_once(_: str) -> None:
                for failure in failures:
                    raise failure

            engine.on_lost = fail_once
            process(engine).kill()
            await until(lambda: lane(engine).restarts > 0 and engine.ready)
            await permute(engine, 5)

    asyncio.run(play())

    assert "a fault in what follows" in caplog.text


def test_a_process_that_a_signal_without_a_name_ended_is_replaced() -> None:
    async def play() -> None:
        async with started(**QUICK) as engine:
            process(engine).send_signal(signal.SIGRTMIN + 1)
            await until(lambda: lane(engine).restarts == 1 and engine.ready)
            await permute(engine, 5)

    asyncio.run(play())


def test_a_server_whose_arena_cannot_be_made_says_so() -> None:
    async def play() -> None:
        with descriptors_left(0):
            async with started():
                pass

    with pytest.raises(EngineError, match="its arena of 1048576 bytes cannot be made: Too many"):
        asyncio.run(play())


def test_a_question_is_answered_by_the_next_process_if_its_own_is_killed() -> None:
    async def play() -> list[Plan | Problem]:
        async with started() as engine:
            suspend(process(engine))
            asked = [asyncio.create_task(permute(engine, n)) for n in range(1, 40)]
            await asyncio.sleep(0.1)
            process(engine).kill()
            return list(await asyncio.gather(*asked))

    assert len(asyncio.run(play())) == 39


def test_questions_that_keep_coming_do_not_delay_the_end_of_a_lane_that_stands_still() -> None:
    async def play() -> None:
        async with started(call_timeout_s=3.0, grace_s=0.5) as engine:
            suspend(process(engine))
            callers = set()
            for nbytes in range(1, 1000):
                callers.add(asyncio.create_task(permute(engine, nbytes)))
                await asyncio.sleep(0.1)
                if lane(engine).restarts:
                    break
            assert lane(engine).restarts
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    asyncio.run(play())


def test_an_answered_question_has_no_clock_any_more(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> LaneStatus:
        async with started(call_timeout_s=2.0, grace_s=0.1) as engine:
            await permute(engine, 5)
            await asyncio.sleep(2.5)
            return lane(engine)

    status = asyncio.run(play())

    assert (status.restarts, status.plan_requests) == (0, 0)
    assert caplog.records == []
