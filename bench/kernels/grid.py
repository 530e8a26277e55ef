"""isin on a grid of sizes: the variant that it takes, against torch and its own other variants.

Each cell of the grid is a number of elements (2^8 to 2^26), a number of test elements (2^0 to
2^22), a dtype, and how the values lie: dense ones are drawn from 0 to 4 times the test elements,
sparse ones from the whole dtype. A sample is: wait on the device until the CPU has queued all,
overwrite twice the L2, record an event, call, record an event. All candidates of a cell are called
once in each round, all on the same clock, which shows some 2 us for nothing. Those that take twice as
long as the fastest in the first two rounds are not called again. Each result is compared with that of torch
before it is timed.

A call of 5 us takes up to 0.4 us longer after some kernels than after others. So the candidates of a
round are called in a random order, and the time of one is the mean of the middle half of its samples,
which varies less than the median where there are two kinds of samples.

The time of a short call also differs by some 0.3 us between processes. So each cell is measured PASSES times, by
different processes if there are as many, and each candidate gets the mean. All processes compile at the same time,
and then measure one after the other.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kernels.grid_page import Cell, heat_map, ratio_of
from bench.kernels.run import machine
from bench.kernels.workers import without_compile_pools
from warpcall_kernels._isin.plan import DTYPES, launches
from warpcall_kernels._isin.rule import choose, variants
from warpcall_kernels.isin import isin, isin_reference, run_plan

ELEMENTS = (8, 10, 11, 12, 14, 16, 18, 19, 20, 22, 24, 26)  # powers of two
TEST_ELEMENTS = (0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22)
TYPES = {"int32": torch.int32, "int64": torch.int64}
VALUES = ("sparse", "dense")
COMPILED_TESTS = 1 << 7  # test elements up to which torch.compile compares rather than sorts
LARGEST_SORT = 1 << 46  # elements times test elements up to which torch is timed
WAIT_CYCLES = 800_000  # some 400 us, in which the CPU queues the call of a candidate
BEATEN = 2  # how much longer than the fastest a candidate takes that two samples are enough for
FLUSH_FACTOR = 2
PASSES = 4  # measurements of each cell

Call = Callable[[Tensor, Tensor], Tensor]
Share = Sequence[tuple[str, int]]  # cells by dtype and the power of two of their test elements


def run(given: argparse.Namespace) -> int:
    """Measure the grid; returns 1 when a result was wrong."""
    context = multiprocessing.get_context("spawn")
    passes = shares_by_pass(shares_of(given.ahead))
    measured: list[Cell] = []
    wrong = 0
    with ExitStack() as stack:
        processes = [
            stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(given.ahead)
        ]
        with without_compile_pools():
            compiling = [
                process.submit(_compile, every, given.compile)
                for process, *every in zip(processes, *passes, strict=True)
            ]
        for compiled in compiling:
            compiled.result()
        for shares in passes:
            for process, own in zip(processes, shares, strict=True):
                cells, errors = process.submit(
                    measure, own, VALUES, given.compile, given.rounds
                ).result()
                measured += cells
                wrong += errors
                _save(given.json, joined(measured))  # an interrupted run keeps its results
    for cell in sorted(joined(measured), key=ratio_of)[:30]:
        sys.stdout.write(f"{ratio_of(cell):.3f} {cell}\n")
    return int(wrong > 0)


def shares_of(processes: int) -> list[Share]:
    """All cells, in a share for each process. Those for which torch compiles are spread first."""
    keys = [*itertools.product(TYPES, TEST_ELEMENTS)]
    keys.sort(key=lambda key: 1 << key[1] > COMPILED_TESTS)
    return [keys[i::processes] for i in range(processes)]


def shares_by_pass(shares: Sequence[Share]) -> list[list[Share]]:
    """For each pass, the share of each process: another one than before if there are several processes."""
    step = len(shares) // PASSES
    return [[*shares[p * step :], *shares[: p * step]] for p in range(PASSES)]


def measure(
    share: Share, values: Iterable[str], compile_too: bool, rounds: int
) -> tuple[list[Cell], int]:
    """Measure the cells of a share; returns them, and how many results were wrong."""
    clock = _Clock()
    measured = [
        _cell(clock, dtype, kind, 1 << m, 1 << n, compile_too, rounds)
        for (dtype, n), m, kind in itertools.product(share, ELEMENTS, values)
    ]
    torch.cuda.empty_cache()  # for the other processes
    return [cell for cell, _errors in measured], sum(errors for _cell, errors in measured)


def _compile(shares: Iterable[Share], compile_too: bool) -> None:
    """Compile what the cells of these shares call, once each. It is the same for all values."""
    every = dict.fromkeys(itertools.chain(*shares))
    for (dtype, n), m in itertools.product(every, ELEMENTS):
        x, test = _inputs(dtype, VALUES[0], 1 << m, 1 << n)
        for call in _calls(dtype, 1 << m, 1 << n, compile_too).values():
            if call is not torch.isin:
                call(x, test)
    torch.cuda.empty_cache()


def joined(measured: Iterable[Cell]) -> list[Cell]:
    """The cells in the order of the page, each with the mean of its measurements."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in measured:
        found.setdefault(_place(cell), []).append(cell)
    return [mean_of(found[place]) for place in sorted(found)]


def _place(cell: Cell) -> tuple[Any, ...]:
    """Where a cell stands on the page."""
    sizes = cell["elements"], cell["test_elements"]
    return [*TYPES].index(cell["dtype"]), VALUES.index(cell["values"]), *sizes


def _save(file: str | None, cells: list[Cell]) -> None:
    if file:
        results = {"machine": machine(), "cells": cells}
        Path(file).write_text(as_json(results))
        Path(file).with_suffix(".svg").write_text(heat_map(results))


def as_json(results: Mapping[str, Any]) -> str:
    """The results as JSON, a cell in each line."""
    cells = ",\n".join(json.dumps(cell) for cell in results["cells"])
    return f'{{"machine": {json.dumps(results["machine"])},\n"cells": [\n{cells}\n]}}\n'


def middle_mean(times: Sequence[float]) -> float:
    """The mean of the middle half of these times."""
    ordered = sorted(times)
    left_out = len(ordered) // 4
    return statistics.mean(ordered[left_out : len(ordered) - left_out])


class _Clock:
    """Times calls on a GPU, with a cold L2."""

    def __init__(self) -> None:
        size = FLUSH_FACTOR * torch.cuda.get_device_properties().L2_cache_size
        self._flush = torch.empty(size, dtype=torch.uint8, device="cuda")

    def times_us(
        self, calls: Mapping[str, Call], x: Tensor, test: Tensor, rounds: int
    ) -> dict[str, float]:
        """The time of each call in us; of those that take long, the least of the first two rounds.

        One sample does not say that a call takes long: the first one after a pause may take 200 us for nothing.
        """
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _round in range(2):
            self._round(calls, x, test, taken)
        self._collect(taken)
        first = {name: min(times) for name, times in taken.items()}
        near = [name for name in calls if first[name] < BEATEN * min(first.values())]
        taken = {name: [] for name in near}
        for _round in range(rounds):
            random.shuffle(near)
            self._round({name: calls[name] for name in near}, x, test, taken)
        self._collect(taken)
        times_us = first | {name: middle_mean(times) for name, times in taken.items() if times}
        return {name: round(time, 2) for name, time in times_us.items()}

    def _round(
        self, calls: Mapping[str, Call], x: Tensor, test: Tensor, taken: dict[str, list[Any]]
    ) -> None:
        torch.cuda._sleep(WAIT_CYCLES * len(calls))  # type: ignore[no-untyped-call]
        for name, call in calls.items():
            self._flush.fill_(1)
            events = [self._event() for _ in range(2)]
            events[0].record()
            call(x, test)
            events[1].record()
            taken[name].append(events)

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _collect(self, taken: dict[str, list[Any]]) -> None:
        torch.cuda.synchronize()
        for name, times in taken.items():
            taken[name] = [
                t if isinstance(t, float) else 1000 * t[0].elapsed_time(t[1]) for t in times
            ]


def _cell(
    clock: _Clock, name: str, values: str, m: int, n: int, compile_too: bool, rounds: int
) -> tuple[Cell, int]:
    """Time a cell; returns it, and how many results were wrong."""
    x, test = _inputs(name, values, m, n)
    calls = _calls(name, m, n, compile_too)
    expected = isin_reference(x, test)
    errors = 0
    for call_name, call in calls.items():
        if call is not torch.isin and not torch.equal(call(x, test), expected):
            errors += 1
            sys.stdout.write(f"WRONG: {call_name} {name} {values} {m} in {n}\n")
    times = clock.times_us(calls, x, test, rounds)
    ours = times.pop("ours")
    cell = {"dtype": name, "values": values, "elements": m, "test_elements": n}
    chosen = choose(DTYPES[TYPES[name]], m, n)
    return {**cell, "variant": chosen.value, "us": ours, "others_us": times}, errors


def _inputs(name: str, values: str, m: int, n: int) -> list[Tensor]:
    """Elements and test elements of a cell."""
    dtype = TYPES[name]
    info = torch.iinfo(dtype)
    low, high = (0, 4 * n) if values == "dense" else (info.min, info.max)
    return [torch.randint(low, high, (k,), dtype=dtype, device="cuda") for k in (m, n)]


def _calls(name: str, m: int, n: int, compile_too: bool) -> dict[str, Call]:
    """The candidates of a cell."""
    dtype = TYPES[name]
    chosen = choose(DTYPES[dtype], m, n)
    calls: dict[str, Call] = {"ours": isin}
    calls |= {
        v.value: _forced(v, m, n, dtype) for v in variants(DTYPES[dtype], m, n) if v != chosen
    }
    if m * n <= LARGEST_SORT:
        calls["torch"] = torch.isin
    if compile_too and n <= COMPILED_TESTS:
        calls["torch.compile"] = _compiled()
    return calls


def mean_of(cells: Sequence[Cell]) -> Cell:
    """The cell with the mean time of each candidate over measurements of it."""
    others = {
        name: round(statistics.mean(cell["others_us"][name] for cell in cells), 2)
        for name in cells[0]["others_us"]
    }
    us = round(statistics.mean(cell["us"] for cell in cells), 2)
    return {**cells[0], "us": us, "others_us": others}


def _forced(variant: Any, m: int, n: int, dtype: torch.dtype) -> Call:
    planned = launches(variant, DTYPES[dtype], m, n, invert=False, words=(None, None))
    return lambda x, test: run_plan(planned, x, test)


@functools.cache
def _compiled() -> Call:
    """`torch.isin` compiled for any number of elements, and for each number of test elements."""
    torch._dynamo.config.recompile_limit = 256
    of_torch = torch.compile(torch.isin, dynamic=False)

    def call(x: Tensor, test: Tensor) -> Tensor:
        torch._dynamo.mark_dynamic(x, 0)
        return of_torch(x, test)

    return call
