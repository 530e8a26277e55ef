"""The library's benchmark: each large case checked first, then timed with a cold L2, beside others.

Beside our time: the limit (a copy that moves the op's compulsory bytes), torch eager (the reference
on the GPU), torch.compile of it, and the best of a file of recorded peers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from warpcall_kernels import Op, ops
from warpcall_kernels._cases import Case
from warpcall_kernels._measure import Stopwatch
from warpcall_kernels._report import HEAD, line
from warpcall_kernels._sweep import sweep

COMPILE_SECONDS = 15.0  # of an op, after which no further case is given to torch.compile


def run(given: argparse.Namespace) -> int:
    """Benchmark what the command line asks for; returns 1 when a result was wrong."""
    peers = json.loads(Path(given.peers).read_text())["ops"] if given.peers else {}
    bench = _Bench(given.rounds, given.compile)
    rows = []
    sys.stdout.write(HEAD)
    for op in ops().values():
        if given.op and op.name not in given.op:
            continue
        for group, case in _cases(op):
            if given.match in case.name and given.group in ("all", group):
                peer = peers.get(op.name, {}).get(case.name, {})
                rows.append({"op": op.name, "group": group, **bench.row(op, case, group, peer)})
                sys.stdout.write(line(rows[-1]))
                sys.stdout.flush()
                torch.cuda.empty_cache()
                if given.json:  # after each, so that a run that is cut short is not lost
                    told = json.dumps({"machine": machine(), "rows": rows}, indent=1)
                    Path(given.json).write_text(told)
    return int(any(row["error"] for row in rows))


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    yield from (("recorded", case) for case in op.cases if case.size == "large")
    yield from (("sweep", case) for case in sweep(op.name))


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


class _Bench:
    """Measures cases, each in the same way."""

    def __init__(self, rounds: int, compile_too: bool) -> None:
        self._watch = Stopwatch()
        self._rounds = rounds
        self._compile_too = compile_too
        self._compiled_s: dict[str, float] = {}  # by op

    def row(self, op: Op, case: Case, group: str, peer: Mapping[str, Any]) -> dict[str, Any]:
        """One line of the table; times in ms, memory in bytes."""
        params = op.check_params(case.params)
        first = case.tensors("cuda")
        nbytes = op.bytes_moved(**first, **params)
        error = _wrong(op, first, params)
        extra = _extra_bytes(op, first, params)

        def draw() -> dict[str, Tensor]:
            return {n: t.clone(memory_format=torch.preserve_format) for n, t in first.items()}

        def timed(function: Callable[..., Any]) -> float | None:
            try:
                call = lambda inputs: function(**inputs, **params)  # one use, below
                return self._watch.time(call, draw, self._rounds).median_ms
            except (RuntimeError, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
                return None  # a baseline that cannot run (memory, capture) has no time

        best = min(peer.get("peers_ms", {}).items(), key=lambda item: item[1], default=None)
        ours = self._watch.time(lambda inputs: op.function(**inputs, **params), draw, self._rounds)
        return {
            "case": case.name,
            "bytes": nbytes,
            "extra_bytes": extra,
            "ms": ours.median_ms,
            "p20_ms": ours.percentile_ms(20),
            "p80_ms": ours.percentile_ms(80),
            "method": ours.method,
            "copy_ms": self._watch.copy_limit(nbytes, self._rounds).median_ms,
            "eager_ms": timed(lambda **kw: _solid(op.reference(**kw))),
            "compile_ms": self._compile(op, timed) if group == "recorded" else None,
            "best_peer": best[0] if best else None,
            "best_peer_ms": best[1] if best else None,
            "error": error,
        }

    def _compile(self, op: Op, timed: Callable[..., float | None]) -> float | None:
        spent = self._compiled_s.setdefault(op.name, 0.0)
        if not self._compile_too or spent > COMPILE_SECONDS:
            return None
        begin = time.monotonic()
        torch._dynamo.reset()  # else the 9th case is not compiled
        result = timed(torch.compile(lambda **kw: _solid(op.reference(**kw)), dynamic=False))
        self._compiled_s[op.name] += time.monotonic() - begin
        return result


def _solid(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(part.contiguous() for part in parts if part is not None)


def _extra_bytes(op: Op, tensors: dict[str, Tensor], params: Mapping[str, Any]) -> int:
    """Device memory at the peak of a call, beside what it was given and what it gives."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = op.compute(tensors, params)
    torch.cuda.synchronize()
    given = sum(-(-t.untyped_storage().nbytes() // 512) * 512 for t in outputs.values())
    return max(0, torch.cuda.max_memory_allocated() - before - given)


def _wrong(op: Op, tensors: dict[str, Tensor], params: Mapping[str, Any]) -> str | None:
    """What is wrong with the op's results, against the reference in fp64 on the same GPU, or None."""
    got = op.compute(tensors, params)
    exact = op.tolerance is None
    inputs = tensors if exact else {name: _widen(t) for name, t in tensors.items()}
    parts = op.reference(**inputs, **params)
    wanted = [p for p in (parts if isinstance(parts, tuple) else (parts,)) if p is not None]
    for (name, ours), theirs in zip(got.items(), wanted, strict=True):
        if op.tolerance is None:
            same = torch.equal(ours, theirs) or _equal_nan(ours, theirs)
        else:
            error = op.tolerance[ours.dtype]
            same = torch.allclose(ours.double(), theirs, rtol=error, atol=error, equal_nan=True)
        if not same:
            return f"{name} differs from the reference"
    return None


def _equal_nan(ours: Tensor, theirs: Tensor) -> bool:
    """Random bits of a float type hold NaN, which equals nothing."""
    return ours.dtype == theirs.dtype and bool(
        torch.isclose(ours, theirs, rtol=0, atol=0, equal_nan=True).all()
    )


def _widen(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t
