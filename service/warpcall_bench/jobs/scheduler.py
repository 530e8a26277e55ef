"""Starts a job on each free device of this server, supervises the runs and writes their ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.jobs import ACTIVE, ExitClass
from warpcall_bench.artefacts import profiles
from warpcall_bench.artefacts.profiles import ArtefactWriter
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.jobs import lifecycle, queue, scratch
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.orphans import OBSERVATIONS, OrphanDetector
from warpcall_bench.jobs.placement import Device, Devices, all_devices, own_device
from warpcall_bench.jobs.queue import Claim
from warpcall_bench.jobs.run_recorder import EndCounter, RunRecorder
from warpcall_bench.jobs.run_trace import RunTrace, begin_trace
from warpcall_bench.jobs.tables import SCRATCH, Job
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.events import EnvironmentKnown, FileFetched, RunEvent
from warpcall_bench.runs.messages import Task
from warpcall_bench.runs.operator_modules import OperatorModules
from warpcall_bench.runs.run_processes import RunProcesses, Start, WaitingRuns
from warpcall_bench.runs.runner import Outcome, Run
from warpcall_bench.runs.sandbox import memory_bytes
from warpcall_bench.runs.sandboxed import CannotStart
from warpcall_bench.runs.scratch import ScratchRun
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import job_uploads, odd_cases
from warpcall_service.extension import Accounts, DeviceLane, Engine, Nodes, Traces
from warpcall_service.nodes.server_identity import IdentityUnavailable
from warpcall_service.processes import temporary
from warpcall_service.store.database import StoreError

POLL_S = 1.0  # between two polls of the queue, unless `wake` calls for one earlier
MOST_PROCESSES = (
    18  # of two jobs that have inputs on the device, each 8 implementations and its own
)
PRUNE_POLLS = 600  # polls between two deletions of old progress events

log = logging.getLogger("warpcall.jobs")


@dataclass(frozen=True, slots=True)
class _Claimed:
    claim: Claim
    id: str
    user: str
    op: str
    task: Task
    of_monitor: bool
    priority: int
    end_us: int
    device_bytes: int | None
    queued_ms: int
    traceparent: str


@dataclass(frozen=True, slots=True)
class _Running:
    claimed: _Claimed
    run: Run
    task: asyncio.Task[None]
    began: float  # by time.monotonic()

    @property
    def claim(self) -> Claim:
        return self.claimed.claim


class Scheduler:
    """Starts jobs on this server's devices and supervises them.

    Of the servers that share a data folder only one runs jobs: the one that has acquired the
    folder's `ServerIdentity`.
    """

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        database: JobDatabase,
        modules: OperatorModules,
        accounts: Accounts,
        nodes: Nodes,
        artefacts: Artefacts,
        traces: Traces | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._database = database
        self._modules = modules
        self._accounts = accounts
        self._nodes = nodes
        self._artefacts = artefacts
        self._traces = traces
        self._identity = nodes.identity
        self._runs: dict[str, _Running] = {}  # by lane: those that may have its device
        self._paused: dict[str, _Running] = {}  # by lane: those that wait for one of `_runs`
        self._waiting = WaitingRuns(settings)
        self._yielding: set[Run] = set()  # that give their devices up to jobs of users
        self._clean: set[str] = set()  # lanes without processes of an earlier server
        self._wake = asyncio.Event()
        self._recovered = False
        self._orphans = OrphanDetector()
        self._heartbeat_s = settings.job_lease_s / OBSERVATIONS
        self._heartbeat_at = self._watch_at = 0.0  # when each is due, by time.monotonic()
        self._pruned_ms = 0
        self._trouble = ""
        self._backlog = queue.Backlog({}, None)
        self._ended = EndCounter()
        self._device_s: defaultdict[str, float] = defaultdict(float)
        self._working: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def devices(self) -> Devices:
        """The devices, of all servers that share the queue, that jobs can run on."""
        return Devices(self._nodes.open_lanes(), all_devices(self._nodes, alive=True))

    def start(self) -> None:
        """Start to poll the queue, in the running event loop."""
        self._working = asyncio.create_task(self._work())

    def wake(self) -> None:
        """Poll the queue now, because it has changed."""
        self._wake.set()

    def cancel(self, number: int) -> None:
        """Stop the run of a job. Nothing happens if the job does not run on this server."""
        for running in self._all_runs():
            if running.claim.number == number:
                running.run.stop("cancelled", "cancelled while it ran")

    async def stop(self) -> None:
        """Put the jobs that run back into the queue, and stop."""
        self._stopping = True
        self.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while left := self._unfinished():  # a poll may have claimed one more job
                    for running in self._all_runs():
                        running.run.stop("interrupted", "the server stopped")
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        await self._waiting.stop()
        if not left:
            self._identity.release()
        await asyncio.to_thread(temporary.sweep)  # of jobs whose reapers were killed
        for task in left:  # the database does not answer; a later server takes these jobs over
            task.cancel()

    def metrics(self) -> Iterable[Metric]:
        """The state of the queue and of running jobs, as Prometheus metrics."""
        jobs = self._backlog.jobs
        queued = GaugeMetricFamily("warpcall_jobs_queued", "Benchmark jobs that wait in the queue")
        queued.add_metric([], jobs.get("queued", 0))
        active = GaugeMetricFamily(
            "warpcall_jobs_active",
            "Benchmark jobs that run on any server which shares the database, by state",
            labels=["state"],
        )
        for state in ACTIVE:
            active.add_metric([state], jobs.get(state, 0))
        oldest = GaugeMetricFamily(
            "warpcall_jobs_oldest_queued_seconds",
            "Seconds since the oldest of the benchmark jobs that wait was submitted; 0 if none waits",
        )
        oldest.add_metric([], self._backlog.oldest_s())
        limit = GaugeMetricFamily(
            "warpcall_job_limit_seconds", "Seconds that one benchmark job may run (job_wall_s)"
        )
        limit.add_metric([], self._settings.job_wall_s)
        ran = GaugeMetricFamily(
            "warpcall_job_run_seconds",
            "Seconds since the benchmark job on the lane's device was started; 0 if none runs",
            labels=["lane"],
        )
        running = GaugeMetricFamily(
            "warpcall_job_running",
            "1 if a benchmark job runs on the lane's device, else 0",
            labels=["lane"],
        )
        leased = CounterMetricFamily(
            "warpcall_job_device_seconds",
            "Seconds for which jobs had the device, by lane",
            labels=["lane"],
        )
        quarantined = GaugeMetricFamily(
            "warpcall_lane_quarantined",
            "1 if a process of a job that cannot be ended may still use the device, else 0",
            labels=["lane"],
        )
        for lane in self._engine.all_lanes:
            run = self._runs.get(lane.name)
            running.add_metric([lane.name], float(run is not None))
            ran.add_metric([lane.name], time.monotonic() - run.began if run else 0.0)
            leased.add_metric([lane.name], self._device_s[lane.name])
            quarantined.add_metric([lane.name], float(lane.state == "quarantined"))
        gauges = queued, active, oldest, limit, running, ran, leased, quarantined
        return *gauges, *self._ended.metrics()

    # Polling the queue

    async def _work(self) -> None:
        polls = 0
        while not self._stopping:
            self._wake.clear()
            try:
                await self._poll(polls)
            except StoreError as error:
                self._log_trouble(error.reason)
            except IdentityUnavailable as error:
                self._log_trouble(str(error))
            except OSError as error:  # such as no free descriptors
                self._log_trouble(f"no jobs are started: {error}")
            except Exception:
                log.exception("the queue of jobs cannot be polled")
            else:
                self._log_trouble("")
            polls += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(POLL_S, self._heartbeat_s))

    def _all_runs(self) -> list[_Running]:
        return [*self._runs.values(), *self._paused.values()]

    def _unfinished(self) -> list[asyncio.Task[None]]:
        """Tasks that are not done: the poll of the queue, and the runs."""
        tasks = [running.task for running in self._all_runs()]
        return [task for task in (self._working, *tasks) if task is not None and not task.done()]

    async def _poll(self, polls: int) -> None:
        runner = self._identity.acquire()
        if not self._recovered:
            await self._database.write(lifecycle.requeue_own, runner)
            self._recovered = True
        now = time.monotonic()
        if now >= self._heartbeat_at:
            await self._write_heartbeats()  # if that fails, it is due again at once
            self._heartbeat_at = now + self._heartbeat_s
        if now >= self._watch_at:
            self._watch_at = now + self._heartbeat_s
            await self._take_over_orphans()
        if polls % PRUNE_POLLS == 0:
            self._pruned_ms = await self._database.write(lifecycle.prune, self._pruned_ms)
        if self._runs:
            for number in await self._database.read(queue.to_cancel, runner):
                self.cancel(number)
        self._backlog = await self._database.read(queue.backlog)
        queued = self._backlog.jobs.get("queued", 0)
        for lane in self._engine.all_lanes if queued else ():
            if self._stopping or self._nodes.is_draining:
                return
            free = lane.state == "ready" and not lane.warming and lane.name not in self._runs
            if free and await self._is_clean(lane):
                claimed = await self._database.write(
                    self._claim, lane.name, own_device(self._nodes, lane)
                )
                if claimed is None:
                    continue  # another lane may have another model
                self._start_run(claimed, lane)
        if queued:
            await self._yield_devices()
            await self._let_pass()

    async def _yield_devices(self) -> None:
        """Put the jobs of monitors back into the queue for whose devices jobs of users wait.

        Their measured cases are kept.
        """
        for lane in self._engine.all_lanes:
            running = self._runs.get(lane.name)
            if running is None or not running.claimed.of_monitor or running.run in self._yielding:
                continue
            device = own_device(self._nodes, lane)
            if await self._database.read(queue.is_wanted, device, self._may_run, self._left_ms()):
                self._yielding.add(running.run)
                running.run.stop("interrupted", "a job of a user needs the device")

    async def _let_pass(self) -> None:
        """Start short jobs on devices where a job of another user runs, which waits meanwhile.

        Its processes keep what they have, so nothing of it is lost or done twice. Of the jobs on one
        device, one waits at a time.
        """
        for lane in self._engine.all_lanes:
            running = self._runs.get(lane.name)
            if running is None or running.claimed.of_monitor or lane.name in self._paused:
                continue
            if self._stopping or self._nodes.is_draining or lane.state != "ready":
                continue
            claimed, device = running.claimed, own_device(self._nodes, lane)
            if claimed.device_bytes is None:  # a scratch run, or an older server has queued it
                continue
            room_bytes = self._room_bytes(lane) - claimed.device_bytes
            other = queue.GivesWay(claimed.user, claimed.priority, claimed.end_us, room_bytes)
            given = device, self._may_run, self._left_ms(), other
            if not await self._database.read(queue.comes_before, *given):
                continue
            short = await self._database.write(self._claim, lane.name, device, other)
            if short is not None:
                self._start_run(short, lane)

    def _room_bytes(self, lane: DeviceLane) -> int:
        """The device memory that the cases of two jobs may need, which each process may need once."""
        total = lane.hello.get("fingerprint", {}).get("memory_bytes")
        return total // MOST_PROCESSES if total else memory_bytes(self._settings)

    async def _write_heartbeats(self) -> None:
        """Write the heartbeats of this server's runs, and stop the runs whose claim is lost."""
        now = time.monotonic()
        running = {one.claim: one for one in self._all_runs()}
        ran_ms = {claim: round((now - one.began) * 1e3) for claim, one in running.items()}
        for claim in await self._database.write(queue.write_heartbeats, ran_ms) if ran_ms else ():
            running[claim].run.stop("interrupted", "another server has taken the job over")

    async def _take_over_orphans(self) -> None:
        ours = {running.claim.number: running.claim.fence for running in self._all_runs()}
        heartbeats = await self._database.write(queue.heartbeats)
        others = {
            n: heartbeat for n, heartbeat in heartbeats.items() if ours.get(n) != heartbeat.fence
        }
        for number, heartbeat in self._orphans.observe(others).items():
            if await self._database.write(lifecycle.take_over, number, heartbeat):
                log.warning("a job of a server that is gone is queued again: number %d", number)
                self._database.notify(number)

    async def _is_clean(self, lane: DeviceLane) -> bool:
        """Kill processes that an earlier server left on this device; whether none is left."""
        if lane.name not in self._clean:
            left = await asyncio.to_thread(
                process_tree.kill_tagged, f"{self._identity.id}/{lane.name}/"
            )
            if left:
                await self._quarantine(lane, left)
                return False
            self._clean.add(lane.name)
        return True

    def _claim(
        self, session: Session, device: str, offer: Device, running: queue.GivesWay | None = None
    ) -> _Claimed | None:
        settings = self._settings
        limits = self._may_run, self._left_ms(), running
        job = queue.claim(session, self._identity.id, offer, *limits)
        if job is None:
            return None
        job.device = device
        if job.kind == SCRATCH:
            return self._claimed(session, job, scratch.task_of(session, job, device, settings))
        uploads, contents = job_uploads.of_job(session, job.number)
        problem = job_uploads.problem_of_job(session, job)
        task: Task = {
            "device": device,
            "modules": {},  # see `_outcome`
            "uploads": uploads,
            "contents": contents,
            "problem": problem,
            "sandboxed": bool(uploads or problem) and settings.uploads == "sandboxed",
            "op": job.op,
            "implementations": json.loads(job.implementations),
            "precision": job.precision,
            "seed": secrets.randbits(31),
            "cases": lifecycle.unmeasured_cases(session, job),
            "memory_bytes": memory_bytes(settings),
            "threads": settings.cpu_threads,
            "odd": odd_cases.unknown(session, job),
            "profile": profiles.left(session, job, settings),
            "sanitize": profiles.left_to_sanitize(session, job, settings),
            "race": lifecycle.is_race(job),
        }
        return self._claimed(session, job, task)

    def _claimed(self, session: Session, job: Job, task: Task) -> _Claimed:
        claim = Claim(job.number, self._identity.id, job.fence)
        return _Claimed(
            *(claim, job.id, job.user_name, job.op, task, job.monitor is not None),
            priority=job.priority,
            end_us=queue.end_us(session, job.user_name),
            device_bytes=job.device_bytes,
            queued_ms=0 if self._traces is None else queue.queued_ms(session, job),
            traceparent=job.traceparent or "",
        )

    def _may_run(self, user: str) -> int:
        """How many jobs of a user may run: none once they have used up the device time of the day."""
        quotas = self._accounts.quotas
        return quotas.count(user, queue.RUNNING) if quotas.has_device_time(user) else 0

    def _left_ms(self) -> int | None:
        """Milliseconds for which this server will run; None if there is no limit."""
        if not self._settings.until:
            return None
        left_s = self._settings.until - self._settings.stop_s - time.time()
        return max(0, round(left_s * 1e3))

    # Running a job

    def _start_run(self, claimed: _Claimed, lane: DeviceLane) -> None:
        self._database.notify(claimed.claim.number)

        def stop(exit_class: ExitClass, detail: str) -> None:
            run.stop(exit_class, detail)

        def on_fetched(fetched: FileFetched, why: str) -> None:
            recorder.put(lambda session, job: scratch.store_file(session, job, fetched, why))

        def job_of(session: Session) -> Job:
            return queue.lock_claimed(session, claimed.claim)

        is_scratch = "scratch" in claimed.task
        writer: ArtefactWriter[Any]
        if is_scratch:
            writer = ArtefactWriter(self._artefacts, job_of, scratch.artefact_of, on_fetched)
        else:
            described = partial(profiles.artefact_of, claimed.task["implementations"])
            writer = ArtefactWriter(self._artefacts, job_of, described)
        recorder = RunRecorder(self._database, claimed.claim, stop, writer)
        tag = f"{self._identity.id}/{lane.name}/{claimed.id}"
        trace = begin_trace(self._traces, claimed.op, claimed.queued_ms, claimed.traceparent)

        def on_event(event: RunEvent) -> None:
            recorder.on_event(event)
            if trace is not None:
                trace.on_event(event)
            # The next job may follow at once. On a GPU, the imports of its processes take no time from
            # what is measured, since they do not touch it. On a CPU they start when the job has ended.
            if isinstance(event, EnvironmentKnown) and claimed.task["device"] != "cpu":
                self._start_waiting(claimed.task, lane)

        passed = self._runs.get(lane.name)
        run = (ScratchRun if is_scratch else Run)(
            *(claimed.task, tag, lane.hello, lane.device_lease, self._settings, on_event),
            partial(self._waiting_for, claimed.task, lane),
            None if passed is None else passed.run,
        )
        if passed is not None:
            passed.run.pause()
            self._paused[lane.name] = passed
            log.info("the job %s waits on %s for a shorter one", passed.claimed.id, lane.name)
        run.on_device_time = partial(self._accounts.add_device_time, claimed.user, claimed.op)
        task = asyncio.create_task(self._supervise(run, claimed, lane, recorder, trace))
        self._runs[lane.name] = _Running(claimed, run, task, time.monotonic())
        log.info("the job %s starts on %s", claimed.id, lane.name)

    def _waiting_for(self, task: Task, lane: DeviceLane) -> RunProcesses | None:
        """Processes that have waited for such a job."""
        with contextlib.suppress(OSError, CannotStart):  # its run says what is wrong
            return self._waiting.take(lane.name, Start.of(task, lane.hello, self._settings))
        return None

    def _start_waiting(self, task: Task, lane: DeviceLane) -> None:
        """Start processes for the next job, which will probably be like this one, without a profile."""
        if self._stopping or self._nodes.is_draining or lane.state != "ready" or "scratch" in task:
            return
        with contextlib.suppress(OSError, CannotStart):
            how = Start.of({**task, "profile": None, "sanitize": []}, lane.hello, self._settings)
            self._waiting.start(lane.name, how, f"{self._identity.id}/{lane.name}/")

    async def _supervise(
        self,
        run: Run,
        claimed: _Claimed,
        lane: DeviceLane,
        recorder: RunRecorder,
        trace: RunTrace | None,
    ) -> None:
        try:
            outcome = await self._outcome(run, claimed.task)
            self._device_s[lane.name] += outcome.device_s
            if outcome.left:
                await self._quarantine(lane, set(outcome.left))
            await recorder.store_artefacts()
            stopping = self._stopping or self._nodes.is_draining
            counts = not (stopping or run in self._yielding)
            state = await recorder.end(outcome, counts=counts)
            exit_class = "interrupted" if recorder.claim_lost else outcome.exit_class
            self._ended.add(exit_class, state)
            if trace is not None:
                trace.end(claimed.id, claimed.user, lane.name, outcome, state or "")
            log.info("the job %s ended on %s: %s", claimed.id, lane.name, exit_class)
            if recorder.claim_lost:
                log.warning(
                    "another server has taken the job %s over: no end is written", claimed.id
                )
        finally:
            await recorder.abandon()
            self._yielding.discard(run)
            self._leave(run, lane)
            self.wake()
            if lane.name not in self._runs:
                self._start_waiting(claimed.task, lane)

    def _leave(self, run: Run, lane: DeviceLane) -> None:
        """A run has ended: the one that was paused for it goes on."""
        paused = self._paused.pop(lane.name, None)
        if self._runs[lane.name].run is run:
            del self._runs[lane.name]
            if paused is not None:
                self._runs[lane.name] = paused
                paused.run.resume()

    async def _outcome(self, run: Run, task: Task) -> Outcome:
        if (task["uploads"] or task["problem"]) and self._settings.uploads == "off":
            what = "measures a problem" if task["problem"] else "times uploaded implementations"
            detail = f"it {what}, and uploads have been switched off"
            return Outcome("invalid", detail, (), 0.0, 0.0)
        settings = self._settings
        if "scratch" in task and (not settings.scratch_max_s or settings.uploads != "sandboxed"):
            detail = "scratch runs have been switched off"
            return Outcome("invalid", detail, (), 0.0, 0.0)
        try:
            task["modules"] = await self._modules.providing(task["implementations"])
            return await run.run()
        except InvalidInput as error:
            return Outcome("invalid", str(error), (), 0.0, 0.0)
        except (OSError, CannotStart) as error:
            why = error.strerror if isinstance(error, OSError) else error
            detail = f"its process could not be started: {why}"
            return Outcome("killed", detail, (), 0.0, 0.0)

    async def _quarantine(self, lane: DeviceLane, left: set[int]) -> None:
        pids = ", ".join(map(str, sorted(left)))
        reason = f"processes of a job cannot be ended: {pids}; end them and restart the server"
        log.error("%s is quarantined: %s", lane.name, reason)
        self._waiting.end(lane.name)
        if (paused := self._paused.get(lane.name)) is not None:
            paused.run.stop("interrupted", "processes of another job on its device cannot be ended")
        await lane.close("quarantined", reason)

    def _log_trouble(self, trouble: str) -> None:
        """Log a reason why no job can start, unless it is the same as the last one."""
        if trouble and trouble != self._trouble:
            log.error(trouble)
        self._trouble = trouble
