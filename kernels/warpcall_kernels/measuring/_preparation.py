"""What is done before the rounds: results are checked, and calls are prepared to be timed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from warpcall_kernels.execution.check import DRAWS, Expected, draw
from warpcall_kernels.execution.clock import LONG_FACTOR, SWAPPED, Clock
from warpcall_kernels.execution.context import on_device
from warpcall_kernels.execution.implementations import LIMIT
from warpcall_kernels.execution.inputs import Pool, Sets, Values, copy_source, values_of
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.measuring._blocks import Blocks, check_inputs
from warpcall_kernels.measuring._candidates import Candidate, failing

Report = Callable[..., Any]

MOST_AT_ONCE = 8  # processes whose results are checked at the same time


def check_results(
    case: JobCase,
    candidates: Sequence[Candidate],
    blocks: Blocks,
    device: torch.device,
    report: Report,
) -> None:
    """Check each implementation against the reference, with random inputs.

    Those that run in processes of their own are checked side by side, if the device has memory for
    their outputs: their first calls compile, each on a CPU.
    """
    at_once = _at_once(case, device)
    for _ in range(DRAWS):
        seed = secrets.randbits(48)
        values = values_of(draw(case.inputs, seed, device))
        check = functools.partial(_check, Expected(case, values, device), values, seed, device)
        present = [c for c in candidates if c.executor is not None and c.status == "ok"]
        remote = _by_process(present)
        if min(at_once, len(remote)) > 1:
            for c in itertools.chain(*remote):
                report("correctness", implementation=c.name)
            with ThreadPoolExecutor(at_once) as threads:
                for checked in [threads.submit(check, some) for some in remote]:
                    checked.result()
            present = [c for c in present if c.process is None]
        for c in present:
            report("correctness", implementation=c.name)
            check([c])
            blocks.stop_if_lost(c)
        report("correctness")  # the next draw and its reference belong to no candidate
    blocks.free()


def _check(
    expected: Expected,
    values: Values,
    seed: int,
    device: torch.device,
    candidates: Sequence[Candidate],
) -> None:
    """Check the results of some candidates, one after the other. A thread may do it."""
    with on_device(device), torch.no_grad():
        if device.type == "cuda":
            torch.cuda.current_stream(device).query()  # makes CUDA's context that of this thread
        for c in candidates:
            assert c.executor is not None
            with failing(c):
                c.executor.write(0, values)
                with _added_to(c.called_s):
                    outputs, c.peak_bytes = c.executor.call()
                expected.check(outputs, f"seed {seed}")
                check_inputs(c)
                del outputs
            if c.remote is not None:
                c.remote.stop()  # its threads would take time from others


def _by_process(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Those that run in other processes: for each process those that run there."""
    found: dict[int, list[Candidate]] = {}
    for c in candidates:
        if c.process is not None:
            found.setdefault(id(c.process), []).append(c)
    return [*found.values()]


def _at_once(case: JobCase, device: torch.device) -> int:
    """How many processes are checked side by side: as many as half of the CPUs, and memory, allow."""
    most = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // 2)
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        most = min(most, free // 2 // max(1, case.device_bytes))
    return max(1, most)


@contextlib.contextmanager
def _added_to(spent_s: list[float]) -> Iterator[None]:
    """Append the seconds that something took, also if it failed."""
    begin = time.monotonic()
    try:
        yield
    finally:
        spent_s.append(time.monotonic() - begin)


def prepare(
    case: JobCase,
    candidates: Sequence[Candidate],
    blocks: Blocks,
    clock: Clock,
    pool: Pool,
    report: Report,
    beside: Sequence[Candidate] = (),
) -> int:
    """Prepare the timing of candidates. If one of them is short, all are timed as short ones.

    Args:
        beside: those that are prepared already, and will be timed with these.

    Returns:
        The compulsory traffic of the case in bytes.
    """
    first, device = pool.at(0), clock.device
    nbytes = case.op.bytes_moved(**first.tensors, **case.params)
    for c in candidates:
        if c.status != "ok":
            continue
        report("preparing", implementation=c.name)
        with failing(c):
            if c.executor is None:
                c.sets = Sets(lambda: {"x": copy_source(nbytes, device)})
                c.timed = clock.ready(lambda inputs: inputs["x"].clone(), c.sets)
            else:
                for which in range(SWAPPED):
                    c.executor.write(which, first)
                c.executor.ready()
            blocks.estimate(c)
        blocks.stop_if_lost(c)
    changed = _shorten([*candidates, *beside], blocks, clock)
    for c in [*candidates, *(c for c in changed if c not in candidates)]:
        if c.is_timed and c.remote is not None and device.type == "cuda":
            with failing(c):
                c.remote.tighten()
            blocks.stop_if_lost(c)
    return nbytes


def _shorten(candidates: Sequence[Candidate], blocks: Blocks, clock: Clock) -> list[Candidate]:
    """Let samples be of many calls if one candidate is short; returns those that this changed."""
    timed = [c for c in candidates if c.is_timed]
    # What an upload says of its time does not decide how the others are timed.
    least_us = min((c.ready.rough_us for c in timed if c.name == LIMIT), default=0.0)
    rough_us = [
        c.ready.rough_us if c.remote is None else max(c.ready.rough_us, least_us)
        for c in timed
        if c.name != LIMIT
    ]
    changed: list[Candidate] = []
    if min(rough_us, default=0) >= clock.short_us:
        return changed
    for c in timed:
        if not c.is_shortened and c.ready.rough_us <= LONG_FACTOR * clock.short_us:
            c.is_shortened = True
            changed.append(c)
            with failing(c):
                if c.executor is not None:
                    c.executor.shorten()
                elif c.timed is not None:
                    clock.shorten(c.timed, c.sets)
                blocks.estimate(c)
            blocks.stop_if_lost(c)
    return changed
