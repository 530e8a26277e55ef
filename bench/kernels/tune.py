"""The constants that launches are chosen by, measured again: for another GPU, or after a change.

No kernel is tuned while it serves: the sizes of tiles are constants beside the code that uses them,
with the figures that chose them. `python -m bench.kernels tune` times each candidate on cases that
decide, and marks the one with the least geometric mean; what it finds is written into the code by hand.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bench.kernels.sweep import sweep
from warpcall_kernels import Op, ops
from warpcall_kernels.measuring._clock import Clock, clock
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.declaration import TunedConstants

_TILES = [
    ((i, j, w),)
    for i, j, w in (
        (32, 64, 4),
        (64, 64, 4),
        (64, 64, 8),
        (64, 128, 8),
        (64, 256, 8),
        (128, 128, 8),
    )
]
_SQUARES = [((side, warps),) for side, warps in ((32, 4), (64, 4), (64, 8), (128, 8))]
_WORDS = [((*shape, most),) for shape in ((8, 32), (16, 16), (16, 32)) for most in (None, 64)]
KNOBS: Mapping[str, Sequence[TunedConstants]] = {
    "permute": (
        TunedConstants("_transpose.plan", ("TILES[2]",), _TILES, ("2D (1,0) [8192, 8192] bf16", "BHSD", "3D (2,1,0) [256, 512, 1024] bf16")),
        TunedConstants("_transpose.plan", ("TILES_FEW_WORDS[2]",), _TILES, ("2D (1,0) [24300",)),
        TunedConstants("_transpose.plan", ("TILES_ONE_WORD[2]",), _TILES, ("(4,2,0, 3, 1)",)),
        TunedConstants("_transpose.unaligned", ("THREADS[2]",), _WORDS, ("2D odd",)),
        TunedConstants("_transpose.plan", ("TILES_SMALL[2]",), _TILES, ("small 512",)),
        TunedConstants("_transpose.plan", ("TILES[4]",), _TILES, ("2D (1,0) [8192, 8192] fp32", "NCHW->NHWC [64, 256, 56, 56] fp32")),
        TunedConstants("_transpose.plan", ("TILES[1]",), _TILES, ("2D u8", "4D (0,3,2,1)")),
    ),
    "transpose-add": (
        TunedConstants("transpose_add", ("TILES[2]",), _SQUARES, ("[24300, 11520] bf16", "[4096")),
        TunedConstants("transpose_add", ("TILES_FEW_WORDS[2]",), _SQUARES, ("[1021",)),
        TunedConstants("transpose_add", ("TILES_SMALL[2]",), _SQUARES, ("[512, 512] bf16",)),
        TunedConstants("transpose_add", ("TILES[4]",), _SQUARES, ("[24300, 11520] fp32",)),
    ),
    "conv": (
        TunedConstants(
            "_conv.forward",
            ("FMA_PIECES", "FMA_WARPS"),
            [(128, 1), (128, 2), (256, 2), (256, 4), (512, 4)],
            ("[8,1024,2048] H16 K7 padK-1 bf16", "[8,1024,2048] H16 K31 padK-1 fp32"),
        ),
        TunedConstants(
            "_conv.forward",
            ("DOT_TILE", "DOT_WARPS", "DOT_PROGRAMS"),
            [(4096, 4, 528), (4096, 4, 264), (2048, 4, 528), (2048, 2, 1056), (8192, 8, 264)],
            ("[8,1024,2048] H16 K31 padK-1 bf16", "[32,512,512] H8 K31 padK-1 bf16"),
        ),
        TunedConstants("_conv.forward", ("FMA_MAX_TAPS",), [(8,), (16,)], ("[8,1024,2048] H16 K15", "[32,512,512] H8 K15")),
        TunedConstants("_conv.forward", ("INTERIOR_TILES",), [(2,), (4,), (32,)], ("[4,1024,8192] H16 K15", "[4,1024,8192] H16 K31 padK-1 fp32")),
    ),
    "conv-backward": (
        TunedConstants(
            "_conv.backward",
            ("PIECES", "WARPS_NARROW", "WARPS", "PARTS"),
            [(256, 2, 4, 1056), (128, 2, 2, 2048), (128, 2, 4, 2048), (256, 4, 8, 2112)],
            ("[8,1024,2048] H16 K7 padK-1", "[4,1024,8192] H16 K3 padK-1 bf16"),
        ),
        TunedConstants(
            "_conv.backward",
            ("DOT_BLOCKS", "DOT_WARPS"),
            [(64, 4), (64, 2), (128, 4), (128, 8)],
            ("[8,1024,2048] H16 K31 padK-1 bf16", "[32,512,512] H8 K31 padK-1 bf16"),
        ),
        TunedConstants("_conv.backward", ("SHORT",), [(0,), (512,), (8192,)], ("[8,1024,2048] H16 K15", "[32,512,512] H8 K15")),
    ),
    "isin": (
        TunedConstants(
            "_isin.plan",
            ("LARGE_SLOTS", "FILTER_SLOTS"),
            [(4, 32), (4, 16), (4, 64), (2, 16)],
            ("M=67108864 N=16777216 i32 sparse", "M=67108864 N=16777216 i64"),
        ),
        TunedConstants(
            "_isin.plan",
            ("SET_BLOCK", "SET_WARPS", "SET_BLOCKS"),
            [(128, 2, 4), (128, 2, 1), (128, 4, 4), (256, 2, 4), (256, 4, 2)],
            ("M=16777216 N=1048576 i32 sparse", "M=67108864 N=16777216 i32 sparse"),
        ),
        TunedConstants(
            "_isin.plan",
            ("HELD_WORDS", "BLOCK", "HELD_WARPS"),
            [(1024, 1024, 8), (512, 1024, 8), (256, 512, 4), (1024, 512, 8)],
            ("M=16777216 N=64 i32 sparse", "M=16777216 N=256 i64"),
        ),
    ),
}  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Time all candidates of the ops that the command line names."""
    watch = clock(torch.device("cuda"))
    for op in tunable():
        if not given.op or op.name in given.op:
            for constants in KNOBS.get(op.name, op.tuning):
                _measure(op.name, constants, watch, given.rounds)
    return 0


def tunable() -> list[Op]:
    """The ops that declare constants to tune."""
    return [op for op in ops().values() if op.tuning or op.name in KNOBS]


def large_cases(name: str) -> list[Case]:
    """Those of an op, and its odd ones."""
    return [*(case for case in ops()[name].cases if case.size == "large"), *sweep(ops()[name])]


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
    """Let all plans be made anew, with the constants as they are now."""
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
