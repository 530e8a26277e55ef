"""Measure the constants that choose variants and tiles again, for another GPU or after a change.

Kernels are not tuned while they serve calls. Their constants stand beside the code that uses them,
with the measurement that chose them. Each op declares in `OP.tuning` which constants `python -m
bench.kernels tune` times, with which candidates, and on which cases. The command marks the shipped
values and prints the candidate with the least geometric mean; a developer writes it into the code.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import sys
from typing import Any

import torch

from warpcall_kernels import Op, ops
from warpcall_kernels.execution.clock import Clock, clock
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.declaration import TunedConstants


def run(given: argparse.Namespace) -> int:
    """Time all candidates of the ops that the command line names."""
    watch = clock(torch.device("cuda"))
    for op in tunable():
        if not given.op or op.name in given.op:
            for constants in op.tuning:
                _measure(op.name, constants, watch, given.rounds)
    return 0


def tunable() -> list[Op]:
    """The ops that declare constants to tune."""
    return [op for op in ops().values() if op.tuning]


def large_cases(name: str) -> list[Case]:
    """The large cases of an op, and those of its sweep."""
    return [*(case for case in ops()[name].cases if case.size == "large"), *ops()[name].sweep]


def _measure(name: str, knob: TunedConstants, watch: Clock, rounds: int) -> None:
    op = ops()[name]
    module = importlib.import_module(f"warpcall_kernels.{knob.module}")
    cases = [next(c for c in large_cases(name) if c.name.startswith(begin)) for begin in knob.cases]
    drawn = [(case.tensors("cuda"), op.check_params(case.params)) for case in cases]
    sys.stdout.write(f"\n{name}: {', '.join(knob.names)} on {', '.join(c.name for c in cases)}\n")
    shipped = tuple(_get(module, n) for n in knob.names)
    found = []
    for candidate in knob.candidates:
        for constant, value in zip(knob.names, candidate, strict=True):
            _set(module, constant, value)
        times = [_time(op.function, inputs, params, watch, rounds) for inputs, params in drawn]
        mean = math.exp(sum(map(math.log, times)) / len(times))
        found.append((mean, candidate))
        line = " ".join(f"{us:9.1f}" for us in times)
        mark = "  shipped" if candidate == shipped else ""
        sys.stdout.write(f"  {candidate!s:28}{line} us{mark}\n")
        sys.stdout.flush()
    for constant, value in zip(knob.names, shipped, strict=True):
        _set(module, constant, value)
    forget_plans()
    sys.stdout.write(f"  best: {min(found)[1]}\n")


def _time(
    function: Any, inputs: dict[str, Any], params: dict[str, Any], watch: Clock, rounds: int
) -> float:
    forget_plans()

    def draw() -> dict[str, torch.Tensor]:
        return {n: t.clone() for n, t in inputs.items()}

    return watch.median_us(lambda drawn: function(**drawn, **params), draw, rounds)


def forget_plans() -> None:
    """Clear the caches of plans, so that the next calls are planned with the current constants."""
    for name, module in list(sys.modules.items()):
        if name.startswith("warpcall_kernels."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == name:
                    value.cache_clear()


def _get(module: Any, name: str) -> Any:
    table, _, key = name.rstrip("]").partition("[")
    return getattr(module, table)[int(key)] if key else getattr(module, table)


def _set(module: Any, name: str, value: Any) -> None:
    table, _, key = name.rstrip("]").partition("[")
    if key:
        getattr(module, table)[int(key)] = value
    else:
        setattr(module, table, value)
