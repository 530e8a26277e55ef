"""The benchmark of the library: each large case is checked, then timed with a cold L2 cache.

Beside our time it reports the limit (the time of a copy that moves the op's compulsory bytes),
torch eager (the reference on the GPU), torch.compile of the reference, and the best time from a
file of recorded peers. `warpcall_kernels.measuring` does the measuring, as it does for jobs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from bench.kernels.report import HEAD, line
from warpcall_kernels import Op, measuring, ops
from warpcall_kernels.op.cases import Case

COMPILE_SECONDS = 15.0  # once torch.compile has taken so long for an op, its other cases do without
COMPILED = "torch.compile"


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
                if given.json:  # after each case, so that an interrupted run keeps its results
                    report = json.dumps({"machine": machine(), "rows": rows}, indent=1)
                    Path(given.json).write_text(report)
    return int(any(row["error"] for row in rows))


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    yield from (("recorded", case) for case in op.cases if case.size == "large")
    yield from (("sweep", case) for case in op.sweep)


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers were measured with."""
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
        # A run has some 150 cases. Exactly `rounds` rounds and a short warm-up keep it to minutes.
        self._precision = measuring.Precision(
            "rounds",
            seconds=10,
            min_rounds=rounds,
            min_seconds=0,
            max_rounds=rounds,
            warm_window_s=0.02,
            warm_seconds=0.2,
            extras=False,
        )
        self._compile_too = compile_too
        self._compiled_s: dict[str, float] = {}  # by op

    def row(self, op: Op, case: Case, group: str, peer: Mapping[str, Any]) -> dict[str, Any]:
        """One line of the table: times in ms, memory in bytes, None for what was not measured."""
        job = measuring.JobCase(op, case.inputs, op.check_params(case.params))
        names = ["warpcall", "torch"]
        if group == "recorded" and self._may_compile(op):
            names.append(COMPILED)
        measured = measuring.measure(
            job, names, "cuda", self._precision, seed=case.seed, progress=self._note(op)
        )
        ours, eager, *compiled = measured.implementations
        samples = [s for s in ours.samples_us if s is not None]
        best = min(peer.get("peers_ms", {}).items(), key=lambda item: item[1], default=None)
        return {
            "case": case.name,
            "bytes": measured.bytes_moved,
            "extra_bytes": _beside_outputs(job, ours.peak_bytes),
            "ms": _ms(ours.median_us),
            "p20_ms": _ms(np.percentile(samples, 20) if samples else None),
            "p80_ms": _ms(np.percentile(samples, 80) if samples else None),
            "method": ours.method,
            "copy_ms": None if measured.limit is None else _ms(measured.limit.median_us),
            "eager_ms": _ms(eager.median_us),
            "compile_ms": _ms(compiled[0].median_us) if compiled else None,
            "best_peer": best[0] if best else None,
            "best_peer_ms": best[1] if best else None,
            "error": ours.error,
        }

    def _may_compile(self, op: Op) -> bool:
        return self._compile_too and self._compiled_s.get(op.name, 0.0) <= COMPILE_SECONDS

    def _note(self, op: Op) -> measuring.Progress:
        """Add up the time of torch.compile, which compiles in the check of correctness, at the
        first call.
        """
        begin = 0.0

        def note(event: Mapping[str, Any]) -> None:
            nonlocal begin
            now = time.monotonic()
            if begin:
                self._compiled_s[op.name] = self._compiled_s.get(op.name, 0.0) + now - begin
            compiles = (event["phase"], event.get("implementation")) == ("correctness", COMPILED)
            begin = now if compiles else 0.0

        return note


def _beside_outputs(job: measuring.JobCase, peak_bytes: int | None) -> int | None:
    """Peak device memory of a call in bytes, without its inputs and its outputs."""
    if peak_bytes is None:
        return None
    given = sum(-(-meta.nbytes // 512) * 512 for meta in job.outputs.values())
    return max(0, peak_bytes - given)


def _ms(us: float | None) -> float | None:
    return None if us is None else float(us) / 1000
