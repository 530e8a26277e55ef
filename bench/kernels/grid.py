"""isin on a grid of sizes: the variant that it takes, against torch and its own other variants.

Each cell of the grid is a number of elements (2^8 to 2^26), a number of test elements (2^0 to
2^22), a dtype, and how the values lie: dense ones are drawn from 0 to 4 times the test elements,
sparse ones from the whole dtype. A sample is: wait on the device until the CPU has queued all,
overwrite twice the L2, record an event, call, record an event. All candidates of a cell are called
in turn in each round, all on the same clock, which shows some 2 us for nothing. Those that take
twice as long as the fastest in the first round are not called again. Each result is compared with
that of torch before it is timed.

Calls of 5 us differ by up to 1 us between two measurements of a cell, some kernels more than others,
and it is not known why: three kernels alone varied by 0.1 us only, wherever their tensors lay. So at the
end, cells below LEAST_RATIO are measured REPEATS times more, and each candidate gets the median of all
these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kernels.grid_page import Cell, heat_map, ratio_of
from bench.kernels.run import machine
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
BEATEN = 2  # how much longer than the fastest a candidate takes that one sample is enough for
FLUSH_FACTOR = 2
LEAST_RATIO = 0.95
REPEATS = 4  # of a cell below it

Call = Callable[[Tensor, Tensor], Tensor]


def run(given: argparse.Namespace) -> int:
    """Measure the grid; returns 1 when a result was wrong."""
    clock = _Clock()
    end = time.monotonic() + (given.seconds or math.inf)
    cells: list[Cell] = []
    wrong = 0
    for m, name, values in itertools.product(ELEMENTS, TYPES, VALUES):
        for n in TEST_ELEMENTS:
            if time.monotonic() > end:
                break
            cell, errors = _cell(clock, name, values, 1 << m, 1 << n, given.compile, given.rounds)
            wrong += errors
            cells.append(cell)
        _save(given.json, cells)  # an interrupted run keeps its results
    for i, cell in enumerate(cells):
        if ratio_of(cell) < LEAST_RATIO and time.monotonic() < end:
            cells[i], errors = _again(clock, cell, given.compile, given.again)
            wrong += errors
    _save(given.json, cells)
    for cell in sorted(cells, key=ratio_of)[:30]:
        sys.stdout.write(f"{ratio_of(cell):.3f} {cell}\n")
    return int(wrong > 0)


def _save(file: str | None, cells: list[Cell]) -> None:
    if file:
        results = {"machine": machine(), "cells": sorted(cells, key=_place)}
        Path(file).write_text(as_json(results))
        Path(file).with_suffix(".svg").write_text(heat_map(results))


def _place(cell: Cell) -> tuple[int, int, int, int]:
    """Where a cell stands in the file: by dtype, kind of values, and sizes."""
    kind = list(TYPES).index(cell["dtype"]), VALUES.index(cell["values"])
    return *kind, cell["elements"], cell["test_elements"]


def as_json(results: Mapping[str, Any]) -> str:
    """The results as JSON, a cell in each line."""
    cells = ",\n".join(json.dumps(cell) for cell in results["cells"])
    return f'{{"machine": {json.dumps(results["machine"])},\n"cells": [\n{cells}\n]}}\n'


class _Clock:
    """Times calls on a GPU, with a cold L2."""

    def __init__(self) -> None:
        size = FLUSH_FACTOR * torch.cuda.get_device_properties().L2_cache_size
        self._flush = torch.empty(size, dtype=torch.uint8, device="cuda")

    def medians_us(
        self, calls: Mapping[str, Call], x: Tensor, test: Tensor, rounds: int
    ) -> dict[str, float]:
        """The median time of each call in us; of those that take long, the first."""
        taken: dict[str, list[float]] = {name: [] for name in calls}
        self._round(calls, x, test, taken)
        self._collect(taken)
        least = min(times[0] for times in taken.values())
        near = [name for name in calls if taken[name][0] < BEATEN * least]
        for i in range(rounds):
            turn = near[i % len(near) :] + near[: i % len(near)]
            self._round({name: calls[name] for name in turn}, x, test, taken)
        self._collect(taken)
        return {
            name: round(statistics.median(times[1:] or times), 2) for name, times in taken.items()
        }

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
    dtype = TYPES[name]
    info = torch.iinfo(dtype)
    low, high = (0, 4 * n) if values == "dense" else (info.min, info.max)
    x, test = (torch.randint(low, high, (k,), dtype=dtype, device="cuda") for k in (m, n))
    chosen = choose(DTYPES[dtype], m, n)
    calls: dict[str, Call] = {"ours": isin}
    calls |= {
        v.value: _forced(v, m, n, dtype) for v in variants(DTYPES[dtype], m, n) if v != chosen
    }
    if m * n <= LARGEST_SORT:
        calls["torch"] = torch.isin
    if compile_too and n <= COMPILED_TESTS:
        calls["torch.compile"] = _compiled()
    expected = isin_reference(x, test)
    errors = 0
    for call_name, call in calls.items():
        if call is not torch.isin and not torch.equal(call(x, test), expected):
            errors += 1
            sys.stdout.write(f"WRONG: {call_name} {name} {values} {m} in {n}\n")
    times = clock.medians_us(calls, x, test, rounds)
    ours = times.pop("ours")
    cell = {"dtype": name, "values": values, "elements": m, "test_elements": n}
    return {**cell, "variant": chosen.value, "us": ours, "others_us": times}, errors


def _again(clock: _Clock, cell: Cell, compile_too: bool, rounds: int) -> tuple[Cell, int]:
    """Measure a cell REPEATS times more; returns the medians, and how many results were wrong."""
    what = cell["dtype"], cell["values"], cell["elements"], cell["test_elements"]
    measured = [_cell(clock, *what, compile_too, rounds) for _repeat in range(REPEATS)]
    wrong = sum(errors for _one, errors in measured)
    return median_of([cell, *(one for one, _errors in measured)]), wrong


def median_of(cells: Sequence[Cell]) -> Cell:
    """The cell with the median time of each candidate over measurements of it."""
    names = cells[0]["others_us"]
    others = {
        name: round(statistics.median(cell["others_us"][name] for cell in cells), 2)
        for name in names
    }
    ours = round(statistics.median(cell["us"] for cell in cells), 2)
    return {**cells[0], "us": ours, "others_us": others}


def _forced(variant: Any, m: int, n: int, dtype: torch.dtype) -> Call:
    planned = launches(variant, DTYPES[dtype], m, n, invert=False, words=(None, None))
    return lambda x, test: run_plan(planned, x, test)


_the_compiled: list[Call] = []


def _compiled() -> Call:
    if not _the_compiled:
        torch._dynamo.config.recompile_limit = 256
        _the_compiled.append(torch.compile(torch.isin, dynamic=True))
    return _the_compiled[0]
