"""The benchmark of the library: each large case is checked, then timed with a cold L2 cache.

Beside our time it reports the limit (the time of a copy that moves the op's compulsory bytes),
torch eager (the reference on the GPU), and torch.compile of the reference. All of these are samples
of the same rounds. The best time from a file of recorded peers has another clock, so our time is
measured by that clock, too. `warpcall_kernels.measuring` does the measuring, as it does for jobs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from bench.kernels import phases
from bench.kernels.ahead import COMPILED, Work, compile_ahead
from bench.kernels.peers import Peers, by_do_bench
from bench.kernels.report import HEAD, line
from warpcall_kernels import Op, measuring, ops
from warpcall_kernels.op.cases import Case

DEVICE = "cuda"
AHEAD_SECONDS = 15.0  # in which references are compiled ahead, at least
SHARE_AHEAD = 0.2  # and of a bounded run's seconds
SHARE_COMPILING = 0.3  # of a bounded run's seconds, which torch.compile may take for all ops


class Effort(NamedTuple):
    """How much time a benchmark takes for each case.

    Args:
        rounds: samples of each measurement.
        warm_seconds: the longest warm-up.
        compile_seconds: once torch.compile has taken so long for an op, its other cases do without.
    """

    rounds: int = 30
    warm_seconds: float = 0.2
    compile_seconds: float = 15.0


SHORT = Effort(rounds=8, warm_seconds=0.06)


class Planned(NamedTuple):
    """A case that is to be measured."""

    op: Op
    group: str
    case: Case


def run(given: argparse.Namespace) -> int:
    """Benchmark what the command line asks for; returns 1 when a result was wrong."""
    begin = time.monotonic()
    effort = SHORT if given.short else Effort()
    effort = effort._replace(rounds=given.rounds or effort.rounds)
    facts = machine()
    peers = Peers.read(given.peers, facts["gpu"])
    kept, before_s = _resumed(given.json, facts) if given.resume else ([], 0.0)
    done = {(row["op"], row["case"]) for row in kept}
    planned = [p for p in plan(given) if (p.op.name, p.case.name) not in done]
    spent = phases.Phases()
    if given.ahead:
        spent.begin(phases.AHEAD)
        planned, count = _compiled_ahead(planned, given)
        seconds = time.monotonic() - begin
        sys.stdout.write(f"compiled ahead for {count} cases in {seconds:.0f} s\n")
    spent.begin(phases.CHECKING)
    end = begin + given.seconds if given.seconds else None
    names = dict.fromkeys(p.op.name for p in planned if p.group == "recorded")
    if given.seconds:
        per_op = SHARE_COMPILING * given.seconds / max(1, len(names))
        effort = effort._replace(compile_seconds=per_op)
    bench = Bench(effort, peers, DEVICE, given.compile, end, spent)
    sys.stdout.write(HEAD)

    def write(rows: list[dict[str, Any]]) -> None:
        spent.begin(phases.WRITING)
        sys.stdout.write(line(rows[-1]))
        sys.stdout.flush()
        torch.cuda.empty_cache()
        if given.json:  # after each case, so that an interrupted run keeps its results
            seconds = before_s + time.monotonic() - begin
            taken = {"seconds": round(seconds, 1), "rounds": effort.rounds}
            _write(Path(given.json), {"machine": facts | taken, "rows": in_order([*kept, *rows])})

    rows = bench.rows(planned, write)
    spent.begin(None)
    sys.stdout.write(f"{len(rows)} cases in {time.monotonic() - begin:.1f} s: {spent.summary()}\n")
    return int(any(row["error"] for row in rows))


def plan(given: argparse.Namespace) -> list[Planned]:
    """The cases to measure: those with recorded peers first, so that a short run has them."""
    chosen = [op for op in ops().values() if not given.op or op.name in given.op]
    found = [
        Planned(op, group, case)
        for op in chosen
        for group, case in _cases(op)
        if given.match in case.name and given.group in ("all", group)
    ]
    return sorted(found, key=lambda p: p.group != "recorded")


def _compiled_ahead(
    planned: list[Planned], given: argparse.Namespace
) -> tuple[list[Planned], int]:
    """Compile for cases; returns them with those that are compiled first, and how many these are."""
    work = [Work(p.op.name, p.case.name, given.compile and p.group == "recorded") for p in planned]
    seconds = max(AHEAD_SECONDS, SHARE_AHEAD * (given.seconds or 0))
    compiled = compile_ahead(work, DEVICE, given.ahead, seconds)
    ready = {(one.op, one.case) for one in compiled}
    ordered = sorted(planned, key=lambda p: (p.op.name, p.case.name) not in ready)
    return ordered, len(compiled)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of the ops."""
    names = list(ops())
    return sorted(rows, key=lambda row: names.index(row["op"]))


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    yield from (("recorded", case) for case in op.cases if case.size == "large")
    yield from (("sweep", case) for case in op.sweep)


def _resumed(file: str | None, facts: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """The rows of an interrupted run and its seconds; none if it ran on another machine."""
    if not file or not Path(file).exists():
        return [], 0.0
    before = json.loads(Path(file).read_text())
    if any(before["machine"].get(name) != fact for name, fact in facts.items()):
        return [], 0.0
    return before["rows"], before["machine"]["seconds"]


def _write(file: Path, results: Mapping[str, Any]) -> None:
    """Replace a file at once, so that a killed run leaves a whole one."""
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=1))
    beside.replace(file)


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


class Bench:
    """Measures cases, each in the same way.

    Args:
        effort: the time for each case.
        peers: the recorded times of other implementations.
        device: "cuda", or "cpu" for tests.
        compile_too: whether torch.compile is measured.
        end: the time of `time.monotonic` at which no further case begins; None means no limit.
        spent: to which the time of each phase is added; None means nobody reads it.
    """

    def __init__(
        self,
        effort: Effort,
        peers: Peers,
        device: str,
        compile_too: bool,
        end: float | None = None,
        spent: phases.Phases | None = None,
    ) -> None:
        self._spent = spent or phases.Phases()
        self._precision = measuring.Precision(
            "rounds",
            seconds=10,
            min_rounds=effort.rounds,
            min_seconds=0,
            max_rounds=effort.rounds,
            warm_window_s=effort.warm_seconds / 10,
            warm_seconds=effort.warm_seconds,
            extras=False,
        )
        self._effort = effort
        self._peers = peers
        self._device = device
        self._compile_too = compile_too
        self._end = end
        self._compiled_s: dict[str, float] = {}  # by op

    def rows(
        self, planned: Iterable[Planned], write: Callable[[list[dict[str, Any]]], None]
    ) -> list[dict[str, Any]]:
        """A row for each case, as many as the time allows; `write` gets all after each one."""
        rows: list[dict[str, Any]] = []
        for op, group, case in planned:
            if self._end is not None and time.monotonic() > self._end:
                break
            rows.append({"op": op.name, "group": group, **self.row(op, case, group)})
            write(rows)
        return rows

    def row(self, op: Op, case: Case, group: str) -> dict[str, Any]:
        """One line of the table: times in ms, memory in bytes, None for what was not measured."""
        job = measuring.JobCase(op, case.inputs, op.check_params(case.params))
        names = ["warpcall", "torch"]
        if group == "recorded" and self._may_compile(op):
            names.append(COMPILED)
        measured = measuring.measure(
            job, names, self._device, self._precision, seed=case.seed, progress=self._note(op)
        )
        self._spent.begin(phases.PEERS)
        ours, eager, *compiled = measured.implementations
        samples = [s for s in ours.samples_us if s is not None]
        best = self._peers.best(op.name, case.name)
        by_peers_clock = best is not None and best.clock == "do_bench" and not ours.error
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
            "best_peer": best.name if best else None,
            "best_peer_ms": best.ms if best else None,
            "peer_clock": best.clock if best else None,
            "do_bench_ms": by_do_bench(op, case) if by_peers_clock else None,
            "error": ours.error,
        }

    def _may_compile(self, op: Op) -> bool:
        """Whether time is left to compile for this op: its own, and what earlier ops left."""
        each = self._effort.compile_seconds
        saved = sum(each - spent for name, spent in self._compiled_s.items() if name != op.name)
        spent = self._compiled_s.get(op.name, 0.0)
        return self._compile_too and spent <= each + max(0.0, saved)

    def _note(self, op: Op) -> measuring.Progress:
        """Add up the time of torch.compile, which compiles in the check of correctness, at the
        first call.
        """
        called: set[str] = set()
        before = self._spent.seconds.get(phases.REFERENCES, 0.0)

        def note(event: Mapping[str, Any]) -> None:
            nonlocal before
            self._spent.begin(phases.of_event(event, called))
            now = self._spent.seconds.get(phases.REFERENCES, 0.0)
            self._compiled_s[op.name] = self._compiled_s.get(op.name, 0.0) + now - before
            before = now

        return note


def _beside_outputs(job: measuring.JobCase, peak_bytes: int | None) -> int | None:
    """Peak device memory of a call in bytes, without its inputs and its outputs."""
    if peak_bytes is None:
        return None
    given = sum(-(-meta.nbytes // 512) * 512 for meta in job.outputs.values())
    return max(0, peak_bytes - given)


def _ms(us: float | None) -> float | None:
    return None if us is None else float(us) / 1000
