"""The library's benchmark: every large case of an op, checked first, then timed with a cold L2.

Columns: our time, the limit (a copy that moves the op's compulsory bytes), their ratio, torch eager
(the reference on the GPU), torch.compile of it, and the best of a file of recorded peers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from warpcall_kernels import Op, ops
from warpcall_kernels._cases import Case
from warpcall_kernels._measure import Stopwatch


def run(given: argparse.Namespace) -> int:
    """Benchmark what the command line asks for; returns 1 when a result was wrong."""
    peers = json.loads(Path(given.peers).read_text())["ops"] if given.peers else {}
    watch = Stopwatch()
    rows = []
    sys.stdout.write(_HEAD)
    for op in ops().values():
        if given.op and op.name not in given.op:
            continue
        for case in op.cases:
            if case.size == "large" and given.match in case.name:
                row = _measure(op, case, watch, given, peers.get(op.name, {}).get(case.name, {}))
                rows.append(row)
                sys.stdout.write(_line(row))
                sys.stdout.flush()
                torch.cuda.empty_cache()
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    return int(any(row["error"] for row in rows))


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    gpu = torch.cuda.get_device_properties()
    return {
        "gpu": gpu.name,
        "sms": gpu.multi_processor_count,
        "l2_mib": gpu.L2_cache_size >> 20,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _measure(
    op: Op, case: Case, watch: Stopwatch, given: argparse.Namespace, peer: Mapping[str, Any]
) -> dict[str, Any]:
    params = op.check_params(case.params)
    first = case.tensors("cuda")
    nbytes = op.bytes_moved(**first, **params)
    error = _wrong(op, first, params)

    def draw() -> dict[str, Tensor]:
        return {name: t.clone(memory_format=torch.preserve_format) for name, t in first.items()}

    def timed(function: Any) -> float | None:
        try:
            times = watch.time(lambda inputs: function(**inputs, **params), draw, given.rounds)
        except (RuntimeError, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
            return None  # a baseline that cannot run (memory, capture) has no time
        return times.median_ms

    best = min(peer.get("peers_ms", {}).items(), key=lambda item: item[1], default=None)
    ours = watch.time(lambda inputs: op.function(**inputs, **params), draw, given.rounds)
    limit = watch.copy_limit(nbytes, given.rounds)
    return {
        "op": op.name,
        "case": case.name,
        "bytes": nbytes,
        "ms": ours.median_ms,
        "p20_ms": ours.percentile_ms(20),
        "p80_ms": ours.percentile_ms(80),
        "method": ours.method,
        "copy_ms": limit.median_ms,
        "eager_ms": timed(lambda **kw: _solid(op.reference(**kw))),
        "compile_ms": timed(torch.compile(lambda **kw: _solid(op.reference(**kw)), dynamic=False))
        if given.compile
        else None,
        "best_peer": best[0] if best else None,
        "best_peer_ms": best[1] if best else None,
        "error": error,
    }


def _solid(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(part.contiguous() for part in parts if part is not None)


def _wrong(op: Op, tensors: dict[str, Tensor], params: Mapping[str, Any]) -> str | None:
    """What is wrong with the op's results, against the reference in fp64 on the same GPU, or None."""
    got = op.compute(tensors, params)
    exact = op.tolerance is None
    inputs = tensors if exact else {name: _widen(t) for name, t in tensors.items()}
    parts = op.reference(**inputs, **params)
    wanted = [p for p in (parts if isinstance(parts, tuple) else (parts,)) if p is not None]
    for (name, ours), theirs in zip(got.items(), wanted, strict=True):
        if op.tolerance is None:
            same = torch.equal(ours, theirs)
        else:
            error = op.tolerance[ours.dtype]
            same = torch.allclose(ours.double(), theirs, rtol=error, atol=error, equal_nan=True)
        if not same:
            return f"{name} differs from the reference"
    return None


def _widen(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


_HEAD = (
    f"{'op':24}{'case':46}{'ms':>9}{'limit':>9}{'share':>7}"
    f"{'eager':>9}{'compile':>9}{'peer':>9}  best peer\n"
)


def _line(row: Mapping[str, Any]) -> str:
    def ms(value: float | None) -> str:
        return f"{value:9.4f}" if value is not None else f"{'-':>9}"

    share = f"{100 * row['copy_ms'] / row['ms']:6.0f}%"
    note = f"  WRONG: {row['error']}" if row["error"] else f"  {row['best_peer'] or ''}"
    return (
        f"{row['op']:24}{row['case']:46}{ms(row['ms'])}{ms(row['copy_ms'])}{share}"
        f"{ms(row['eager_ms'])}{ms(row['compile_ms'])}{ms(row['best_peer_ms'])}{note}\n"
    )
