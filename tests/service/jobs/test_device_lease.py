"""The device is one's alone at a time: a job's for a timed block, and between blocks the calls'."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import httpx
import psutil
import pytest

from tests.forks import forked_workers
from tests.servers import Server, running_server
from tests.service.job_requests import (
    BRIEF,
    CASE,
    JOB,
    client,
    ended,
    reached,
    results,
    show,
    submit,
)
from tests.service.jobs.test_giving_way_live import slow
from tests.service.requests import well
from tests.service.uploads.requests import uploaded
from warpcall.errors import Unavailable
from warpcall.wire import TensorInfo
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.service import JobService
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import TAG_VARIABLE, Task
from warpcall_bench.runs.operator_modules import OperatorModules
from warpcall_bench.runs.runner import Run
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.checks import Checks
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.device_lease import LONG_BLOCK_S, SHORT_BLOCK_S, DeviceLease
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.lane import Lane
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import LaneStatus
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

X = TensorInfo("x", "F32", (64, 64))
PATIENCE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _processes_are_forks_and_jobs_are_brief() -> Iterator[None]:
    with forked_workers(), pytest.MonkeyPatch.context() as variables:
        variables.setenv("PYTHONPATH", BRIEF["PYTHONPATH"])
        yield


class Watched(DeviceLease):
    """A lane's lease, which notes what the lane's process had computed by each hand-over.

    Attributes:
        blocks: nanoseconds that its thread for calls ran on a CPU within each block.
        held_s: how long each was.
        waited: calls that waited at the end of each.
    """

    def __init__(self, lane: Lane) -> None:
        lease = lane.device_lease
        super().__init__(lease._is_busy, lease._has_waiting, lease._resume)
        self.blocks: list[int] = []
        self.held_s: list[float] = []
        self.waited: list[int] = []
        self._lane = lane
        self._before = 0

    def _ran_ns(self) -> int:
        return int(self._read("schedstat").split()[0])

    def _sleeps(self) -> bool:
        return self._read("stat").rpartition(")")[2].split()[0] == "S"

    def _read(self, file: str) -> str:
        pid = self._lane.status().pid
        return Path(f"/proc/{pid}/task/{pid}/{file}").read_text()

    async def acquire(self) -> None:
        await super().acquire()
        while not self._sleeps():  # it has sent its last answer, and goes back to wait for a call
            await asyncio.sleep(0)
        self._before = self._ran_ns()

    def release(self) -> None:
        if self.since is not None:
            self.blocks.append(self._ran_ns() - self._before)
            self.held_s.append(time.monotonic() - self.since)
            self.waited.append(self._lane.status().queued)
        super().release()


async def until_queued(engine: LocalEngine, calls: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while engine.status()[0].queued < calls:
            await asyncio.sleep(0)


async def call(engine: LocalEngine, plan: Plan) -> float:
    """One call; how long it took."""
    began = time.monotonic()
    slot = await engine.acquire(2 * X.nbytes, PATIENCE_S, LOCAL.name)
    try:
        await engine.run_on_lane(plan, slot, slot, X.nbytes, began + PATIENCE_S)
    finally:
        slot.release()
    return time.monotonic() - began


async def call_on(engine: LocalEngine, plan: Plan) -> None:
    """One call after the other, until one fails."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await call(engine, plan)


def test_within_a_block_the_lane_computes_nothing_however_many_calls_wait() -> None:
    """The whole path of a job, and 8 callers who never rest."""

    async def play() -> tuple[Watched, str, list[float]]:
        settings = BenchSettings.load(devices="cpu", arena_bytes=8 << 20)
        engine = LocalEngine(settings)
        await engine.start()
        try:
            lane = engine.all_lanes[0]
            lease = lane.device_lease = Watched(lane)
            plan = await engine.plan_call("permute", [X], {"dims": [1, 0]})
            took_s: list[float] = []

            async def flood() -> None:
                while True:
                    took_s.append(await call(engine, plan))

            floods = [asyncio.create_task(flood()) for _ in range(8)]
            run = Run(task(), "test/lease", {}, lease, settings, lambda event: None)
            outcome = await run.run()
            for one in floods:
                one.cancel()
            await asyncio.wait(floods)
            assert all(one.cancelled() for one in floods)
            return lease, outcome.exit_class, took_s
        finally:
            await engine.stop()

    lease, exit_class, took_s = asyncio.run(play())

    assert exit_class == "ok"
    assert len(lease.blocks) > 10
    assert sum(lease.waited) > len(lease.blocks), "calls came meanwhile"
    assert set(lease.blocks) == {0}
    assert len(took_s) > len(lease.blocks), "and were served between blocks"


class Shared:
    """A lane's lease as one of several runs has it. Only the run that has the device returns it.

    Attributes:
        blocks: names of the runs, one for each block, in their order; all runs share the list.
    """

    def __init__(self, name: str, lease: DeviceLease, blocks: list[str]) -> None:
        self.blocks = blocks
        self._name = name
        self._lease = lease

    def __getattr__(self, name: str) -> object:
        return getattr(self._lease, name)

    async def acquire(self) -> None:
        await self._lease.acquire()
        self.blocks.append(self._name)

    def release(self) -> None:
        assert self._lease.since is None or self.blocks[-1] == self._name
        self._lease.release()


@pytest.mark.parametrize("ends", [False, True])
def test_a_paused_run_has_no_block_while_another_one_runs_and_then_goes_on(ends: bool) -> None:
    """The paused run goes on when the other one has ended, or ends while others have the device."""

    async def play() -> tuple[str, str, list[str], int]:
        settings = BenchSettings.load(devices="cpu", arena_bytes=8 << 20)
        engine = LocalEngine(settings)
        await engine.start()
        try:
            lease, blocks = engine.all_lanes[0].device_lease, list[str]()

            async def until_blocks(name: str, more: int) -> None:
                wanted = blocks.count(name) + more
                async with asyncio.timeout(PATIENCE_S):
                    while blocks.count(name) < wanted:
                        await asyncio.sleep(0.01)

            def run(name: str, waits_for: Run | None = None, **change: object) -> Run:
                shared = cast("DeviceLease", Shared(name, lease, blocks))
                given = cast("Task", {**task(), **change})
                tag = f"test/lease/{name}"
                return Run(
                    given, tag, {}, shared, settings, lambda event: None, waits_for=waits_for
                )

            long = run("long", precision="publish")
            of_long = asyncio.create_task(long.run())
            await until_blocks("long", 3)
            long.pause()
            short = run("short", long)
            of_short = asyncio.create_task(short.run())
            await until_blocks("short", 3)
            found = await of_short
            if ends:
                await lease.acquire()  # for another run
                long.stop("cancelled", "")
                await of_long
                assert lease.since is not None
                lease.release()
            else:
                long.resume()
                await until_blocks("long", 3)
                long.stop("cancelled", "")
            return found.exit_class, (await of_long).exit_class, blocks, blocks.count("short")
        finally:
            await engine.stop()

    of_short, of_long, blocks, count = asyncio.run(play())

    assert (of_short, of_long) == ("ok", "cancelled")
    first = blocks.index("short")
    assert blocks[first : first + count] == ["short"] * count
    assert (blocks[-1] == "long") is not ends


def task() -> Task:
    spec = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
    return {
        "device": "cpu",
        "modules": {},
        "uploads": [],
        "problem": None,
        "sandboxed": False,
        "op": "permute",
        "implementations": ["warpcall"],
        "precision": "quick",
        "seed": 1,
        "cases": [(0, spec)],
        "memory_bytes": 2 << 30,
        "threads": 1,
    }


def test_a_block_waits_for_the_calls_before_it_and_they_for_one_block() -> None:
    async def play() -> tuple[list[bool], bool]:
        engine = LocalEngine(BenchSettings.load(devices="cpu", arena_bytes=8 << 20))
        await engine.start()
        try:
            lane = engine.all_lanes[0]
            old = lane.device_lease
            lease = lane.device_lease = DeviceLease(
                old._is_busy, old._has_waiting, old._resume, calls_window_s=PATIENCE_S
            )
            plan = await engine.plan_call("permute", [X], {"dims": [1, 0]})
            await lease.acquire()
            early = [asyncio.create_task(call(engine, plan)) for _ in range(20)]
            await until_queued(engine, 20)
            begun = [one.done() for one in early]
            lease.release()
            await lease.acquire()
            await asyncio.gather(*early)  # the device is the job's again
            late = asyncio.create_task(call(engine, plan))
            await until_queued(engine, 1)
            kept_back = not late.done()
            lease.release()
            lease.release()  # harmless
            await late
            return begun, kept_back
        finally:
            await engine.stop()

    assert asyncio.run(play()) == ([False] * 20, True)


def test_calls_that_never_end_keep_a_block_off_for_a_turn_only() -> None:
    async def play() -> None:
        lease = DeviceLease(lambda: False, lambda: True, lambda: None, calls_window_s=0.01)
        async with asyncio.timeout(PATIENCE_S):
            await lease.acquire()
        assert lease.blocks_calls

    asyncio.run(play())


def test_a_block_waits_while_kernels_are_compiled_and_keeps_no_calls_back_meanwhile() -> None:
    starting = [True]

    async def play() -> tuple[bool, bool, bool]:
        lease = DeviceLease(
            lambda: False, lambda: False, lambda: None, is_starting=lambda: starting[0]
        )
        acquiring = asyncio.create_task(lease.acquire())
        for _ in range(3):
            await asyncio.sleep(0)
            lease.notify()
        waits, blocks = not acquiring.done(), lease.blocks_calls
        starting[0] = False
        lease.notify()
        async with asyncio.timeout(PATIENCE_S):
            await acquiring
        return waits, blocks, lease.blocks_calls

    assert asyncio.run(play()) == (True, False, True)


def test_blocks_are_short_while_calls_wait_or_came_lately() -> None:
    now = time.monotonic()
    waiting, called_at = [False], [now - 60]
    lease = DeviceLease(
        lambda: False, lambda: waiting[0], lambda: None, called_at=lambda: called_at[0]
    )

    alone = lease.block_s
    waiting[0] = True
    with_waiting = lease.block_s
    waiting[0], called_at[0] = False, time.monotonic() + 60  # however slow this machine is
    after_a_call = lease.block_s

    assert with_waiting == after_a_call == SHORT_BLOCK_S < alone == LONG_BLOCK_S


def test_a_lane_tells_its_lease_of_its_calls() -> None:
    async def play() -> tuple[float, float]:
        engine = LocalEngine(BenchSettings.load(devices="cpu", arena_bytes=8 << 20))
        await engine.start()
        try:
            lease = engine.all_lanes[0].device_lease
            before = lease.block_s
            plan = await engine.plan_call("permute", [X], {"dims": [1, 0]})
            for _ in range(100):  # one of them is followed at once, however slow this machine is
                await call(engine, plan)
                if lease.block_s == SHORT_BLOCK_S:
                    break
            return before, lease.block_s
        finally:
            await engine.stop()

    assert asyncio.run(play()) == (LONG_BLOCK_S, SHORT_BLOCK_S)


def test_whoever_gives_up_waiting_leaves_the_lane_open() -> None:
    async def play() -> list[str]:
        pumped: list[str] = []
        lease = DeviceLease(
            is_busy=lambda: True, has_waiting=lambda: False, resume=lambda: pumped.append("x")
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lease.acquire()
        assert not lease.blocks_calls
        return pumped

    assert asyncio.run(play()) == ["x"]


def test_a_device_on_which_something_cannot_be_ended_is_used_no_more_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "KILL_S", -1.0)  # nothing dies as fast as that
    asked = JobRequest.model_validate(JOB)

    async def play() -> tuple[LaneStatus, str, int, dict[str, float], bool]:
        settings = BenchSettings.load(devices="cpu", arena_bytes=8 << 20, data_dir=tmp_path)
        engine = LocalEngine(settings)
        store = Store(None, tmp_path)
        store.migrate()
        identity = ServerIdentity(tmp_path)
        tag = f"{identity.acquire()}/cpu/a job of before"
        membership = Membership(engine, store, identity, "http://x", lambda: False)
        quotas = engine.quotas
        job_service = JobService(
            settings,
            engine,
            store,
            OperatorModules(settings),
            Sandbox(settings),
            Checks(settings),
            AccountSync(store, Snapshot(), quotas),
            membership,
            Artefacts(settings, store, membership, quotas),
        )
        await engine.start()
        try:
            plan = await engine.plan_call("permute", [X], {"dims": [1, 0]})
            lane = psutil.Process(engine.status()[0].pid)
            job = await job_service.submit(LOCAL, asked, None)
            with left_behind(tag):
                job_service.start()
                with pytest.raises(Unavailable, match="processes of a job cannot be ended"):
                    await call_on(engine, plan)
            found = await job_service.find(LOCAL, job.id)
            values = {
                family.name: family.samples[0].value
                for family in job_service.scheduler.metrics()
                if family.samples
            }
            return (
                engine.status()[0],
                found.state,
                job_service.scheduler.devices.number,
                values,
                lane.is_running(),
            )
        finally:
            await job_service.stop()
            await engine.stop()
            store.close()

    status, job, devices, values, runs = asyncio.run(play())

    assert (status.state, job, devices, runs) == ("quarantined", "queued", 0, False)
    assert re.search(r"cannot be ended: \d+; end them and restart the server", status.reason)
    assert values["warpcall_lane_quarantined"] == 1


@contextmanager
def left_behind(tag: str) -> Iterator[None]:
    """A process such as a server that was killed may leave of its jobs."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, env={TAG_VARIABLE: tag}) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server({"WARPCALL_UPLOADS": "trusted", **BRIEF}) as running:
        yield running


def test_calls_are_right_while_a_job_runs_and_a_killed_lane_harms_no_job(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    cases = [{**CASE, "shape": [8, n]} for n in (9, 11, 13)]
    with client(server) as http, ThreadPoolExecutor(4) as pool:
        name = uploaded(http, slow(0, 0.1, file))["name"]  # runs until there is the file
        job = submit(http, implementations=[name], cases=cases)
        reached(http, job, lambda found: found["state"] == "running")
        answers = list(pool.map(lambda _: checked(http), range(60)))
        running = show(http, job)["state"]
        lane_of(server).kill()
        file.touch()
        done = ended(http, job)
        server.wait_ready()
        restarts = http.get("/readyz").json()["lanes"][0]["restarts"]
        measured = results(http, job)["measurements"]

    assert (running, restarts) == ("running", 1)
    assert answers == [True] * 60
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert [row["status"] for row in measured] == ["ok"] * 3


def lane_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(p for p in children if "warpcall_service.worker.main" in p.cmdline())


def checked(http: httpx.Client) -> bool:
    answer = well(http)
    return answer.status_code == 200 and answer.json()["outputs"]["out"]["data"] == [2, 1, 0]
