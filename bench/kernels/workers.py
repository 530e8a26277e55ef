"""Processes that compile for many cases at the same time, and then measure one case at a time.

A process keeps what it compiled, so that the case is measured there without tracing its reference
again. Nothing else uses the GPU while a case is measured.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Self

import torch
import triton

from bench.kernels.measure import Bench, Effort, Planned, failed_row
from bench.kernels.peers import Peers
from bench.kernels.phases import Phases
from bench.kernels.references import Kept, undecided
from warpcall_kernels import interpreter, ops
from warpcall_kernels.execution.check import draw
from warpcall_kernels.execution.failures import class_of, first_line
from warpcall_kernels.op.cases import Case

LARGEST_BYTES = 2 << 30  # of a case that is compiled ahead: so many processes share the GPU
MOST_KEPT_BYTES = 1 << 30  # of a case, beyond which reference cycles are looked for
LAST_SECONDS = 20.0  # for compilations that began before the end
MORE_S = 10.0  # in which a process ends by itself
ENDED = (EOFError, OSError)  # errors of a connection to a process that has ended


class Task(NamedTuple):
    """What a process is asked to do.

    Args:
        op: the name of the case's op. An op itself cannot be sent to a process.
        measures: whether the case is measured; otherwise it is compiled.
        references: whether torch.compile takes part.
    """

    op: str
    group: str
    case: Case
    measures: bool
    references: bool


@contextmanager
def without_compile_pools() -> Iterator[None]:
    """Processes that are started in this context run torch.compile without a pool of processes each."""
    threads = os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        yield
    finally:
        if threads == "1":
            del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]


class Workers:
    """Processes that compile and measure cases.

    Args:
        count: how many.
        effort, peers, device: as for `Bench`.
        references: whether torch.compile takes part.
    """

    def __init__(
        self, count: int, effort: Effort, peers: Peers, device: str, references: bool
    ) -> None:
        self._count = count
        self._settings = (effort, peers, device)
        self._references = references
        self._processes: dict[Connection, Any] = {}
        self._owners: dict[tuple[str, str], Connection] = {}

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()

    def end_all(self) -> None:
        """End all processes, which frees their memory. The next case starts a new one."""
        for connection in [*self._processes]:
            self._end(connection)

    def compile(self, planned: Iterable[Planned], seconds: float | None) -> list[Planned]:
        """Compile for cases in parallel. Processes that have ended are started again before.

        Args:
            planned: the cases, in the order in which they are begun.
            seconds: after which no further case is begun; None means no limit.

        Returns:
            The cases that were compiled.
        """
        end = None if seconds is None else time.monotonic() + seconds
        waiting = iter(planned)
        busy: dict[Connection, Planned] = {}
        compiled: list[Planned] = []

        def give(connection: Connection) -> None:
            if end is not None and time.monotonic() >= end:
                return
            case = next(waiting, None)
            if case is not None:
                connection.send(self._task(case, measures=False))
                busy[connection] = case

        while len(self._processes) < self._count:
            self._start()
        for connection in self._processes:
            give(connection)
        while busy:
            left = None if end is None else max(0.0, end - time.monotonic()) + LAST_SECONDS
            ready = [c for c in wait([*busy], left) if isinstance(c, Connection)]
            for connection in ready:
                case = busy.pop(connection)
                try:
                    succeeded = connection.recv()
                    give(connection)
                except ENDED:
                    self._end(connection)
                    busy.pop(connection, None)
                    continue
                if succeeded:
                    compiled.append(case)
                    self._owners[case.key] = connection
            if not ready:
                break
        for connection in busy:  # these take too long, and would disturb the measurements
            self._end(connection)
        return compiled

    def row(
        self, planned: Planned, limit_s: float | None = None
    ) -> tuple[dict[str, Any], Mapping[str, float]]:
        """The row of a case and the seconds of each phase, from the process that compiled it.

        If this process ends or can no longer use the device, perhaps because of the case before,
        another one measures the case.

        Args:
            limit_s: after which the process is ended, and the row says so; None means no limit.

        Raises:
            RuntimeError: the other process ended, too.
        """
        owner = self._owners.get(planned.key)
        found: tuple[dict[str, Any], Mapping[str, float]] | None = None
        for _ in range(2):
            if owner not in self._processes:
                owner = next(iter(self._processes), None) or self._start()
            try:
                owner.send(self._task(planned, measures=True))
                if not owner.poll(limit_s):
                    self._end(owner)
                    return failed_row(planned, "timeout", f"no result within {limit_s} s"), {}
                found = owner.recv()
            except ENDED:
                self._end(owner)
                found = None
            else:
                if not found[0]["device_lost"]:
                    return found
                self._end(owner)
        if found is None:
            what = f"{planned.op.name} {planned.case.name}"
            raise RuntimeError(f"the processes that measured {what} have ended")
        return found

    def _task(self, planned: Planned, *, measures: bool) -> Task:
        references = self._references and planned.has_reference
        return Task(planned.op.name, planned.group, planned.case, measures, references)

    def _start(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(theirs, *self._settings), daemon=True
        )
        with without_compile_pools():
            process.start()
        theirs.close()  # else the end of the process would not end the connection
        self._processes[ours] = process
        return ours

    def _end(self, connection: Connection) -> None:
        process = self._processes.pop(connection)
        connection.close()
        process.terminate()
        process.join(MORE_S)
        if process.is_alive():
            process.kill()


def serve(connection: Connection, effort: Effort, peers: Peers, device: str) -> None:
    """Do tasks until the connection ends: answer each with a row, or whether it was compiled.

    It also ends when the device cannot be used any more in this process. Without a GPU, and with
    TRITON_INTERPRET=1, kernels are interpreted.
    """
    if triton.knobs.runtime.interpret:
        interpreter.mend()
        torch.set_num_threads(1)
    spent = Phases()
    kept = Kept(device)
    while True:
        try:
            task: Task = connection.recv()
        except ENDED:
            return
        if not task.measures:
            try:
                compiled = _compile(task, kept, device)
            except DeviceLost:
                return
            _release(device)
            connection.send(compiled)
            continue
        before = dict(spent.seconds)
        bench = Bench(effort, peers, device, kept if task.references else None, spent)
        planned = Planned(ops()[task.op], task.group, task.case, task.references)
        try:
            row = bench.row(planned)
        except Exception as error:  # noqa: BLE001  # such as the lack of memory for the inputs
            row = failed_row(planned, class_of(error), first_line(error))
        if row["device_lost"]:
            connection.send((row, {}))
            return
        _release(device)
        taken = {phase: s - before.get(phase, 0.0) for phase, s in spent.seconds.items()}
        connection.send((row, taken))


def _release(device: str) -> None:
    """Leave the memory of the case before to other processes.

    An error keeps the tensors of its frames alive, and a CUDA graph the memory that it was captured with, until
    Python collects reference cycles. That takes long, so it is only done if much memory is left.
    """
    if device == "cpu":
        return
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved() > MOST_KEPT_BYTES:
        gc.collect()
        torch.cuda.empty_cache()


class DeviceLost(Exception):
    """An error has made the device unusable for this process."""


def _compile(task: Task, kept: Kept, device: str) -> bool:
    """Compile for a case, unless it is too large. Raises DeviceLost."""
    op, case = ops()[task.op], task.case
    try:
        params = op.check_params(case.params)
        inputs = draw(case.inputs, case.seed, torch.device(device))
        if op.bytes_moved(**inputs, **params) > LARGEST_BYTES:
            return False
        with torch.no_grad():
            op.function(**inputs, **params)
        del inputs
        if task.references:
            with undecided():
                kept.compile(op, case)
        if device != "cpu":
            torch.cuda.synchronize()  # else an error of this case would be seen in the next one
    except Exception as error:
        if class_of(error) == "cuda_error":
            raise DeviceLost from error
        return False  # the row will say what fails
    return True
