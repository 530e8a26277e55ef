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
from typing import Any

import torch
import triton

from bench.kernels import phases
from bench.kernels.measure import SHORT, Bench, Effort, Planned
from bench.kernels.peers import Peers
from bench.kernels.references import Budgeted
from bench.kernels.report import HEAD, line
from bench.kernels.workers import Workers
from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import Case

DEVICE = "cuda"
SHARE_AHEAD = 0.4  # of a bounded run's seconds, in which processes compile ahead
COMPILE_SECONDS = 15.0  # which torch.compile may take for each op, in a run without limit
SHARE_COMPILING = 0.3  # of a bounded run's seconds, which torch.compile may take for all ops

Row = dict[str, Any]
Measure = Callable[[Planned], Row]


def run(given: argparse.Namespace) -> int:
    """Benchmark what the command line asks for; returns 1 when a result was wrong."""
    begin = time.monotonic()
    effort = SHORT if given.short else Effort()
    effort = effort._replace(rounds=given.rounds or effort.rounds)
    facts = machine()
    peers = Peers.read(given.peers, facts["gpu"])
    kept, before_s = _resumed(given.json, facts) if given.resume else ([], 0.0)
    done = {(row["op"], row["case"]) for row in kept}
    planned = [p for p in plan(given) if p.key not in done]
    spent = phases.Phases()
    end = begin + given.seconds if given.seconds else None

    rows: dict[tuple[str, str], Row] = {}

    def measure(cases: Iterable[Planned], row_of: Measure) -> None:
        """Add or replace the row of each case, as many as the time allows."""
        for case in cases:
            if end is not None and time.monotonic() > end:
                break
            row = row_of(case)
            rows[case.key] = row
            write(row)

    def write(last: Row) -> None:
        spent.begin(phases.WRITING)
        sys.stdout.write(line(last))
        sys.stdout.flush()
        torch.cuda.empty_cache()
        if given.json:  # after each case, so that an interrupted run keeps its results
            seconds = before_s + time.monotonic() - begin
            taken = {"seconds": round(seconds, 1), "rounds": effort.rounds}
            every = in_order([*kept, *rows.values()])
            write_json(Path(given.json), {"machine": facts | taken, "rows": every})
        spent.begin(None)

    if given.ahead:
        with Workers(given.ahead, effort, peers, DEVICE, given.compile) as workers:
            planned = _compiled_ahead(workers, planned, given.seconds, spent)
            sys.stdout.write(HEAD)
            row_of = _by(workers, spent)
            measure(planned, row_of)
            if short := [p for p in planned if _lacked_memory(rows.get(p.key, {}))]:
                workers.end_all()  # they may hold the memory that these cases lacked
                measure(short, row_of)
    else:
        seconds = _compile_seconds(planned, given.seconds)
        references = Budgeted(seconds) if given.compile else None
        sys.stdout.write(HEAD)
        measure(planned, Bench(effort, peers, DEVICE, references, spent).row)
    took = time.monotonic() - begin
    sys.stdout.write(f"{len(rows)} cases in {took:.1f} s: {spent.summary()}\n")
    return int(any(row["error"] for row in rows.values()))


def _lacked_memory(row: Row) -> bool:
    """Whether an implementation of this row's case ran out of memory. Older files do not say it."""
    return bool(row.get("out_of_memory"))


def _compiled_ahead(
    workers: Workers, planned: list[Planned], seconds: float | None, spent: phases.Phases
) -> list[Planned]:
    """Compile for cases, and return them, with those first that are compiled."""
    begin = time.monotonic()
    spent.begin(phases.AHEAD)
    compiled = workers.compile(planned, seconds and SHARE_AHEAD * seconds)
    spent.begin(None)
    took = time.monotonic() - begin
    sys.stdout.write(f"compiled for {len(compiled)} of {len(planned)} cases in {took:.1f} s\n")
    ready = {id(p.case) for p in compiled}
    return sorted(planned, key=lambda p: id(p.case) not in ready)


def _by(workers: Workers, spent: phases.Phases) -> Measure:
    def measure(planned: Planned) -> Row:
        row, seconds = workers.row(planned)
        spent.add(seconds)
        return row

    return measure


def _compile_seconds(planned: Iterable[Planned], seconds: float | None) -> float:
    """How long torch.compile may take for each op, if references are compiled when measured."""
    if seconds is None:
        return COMPILE_SECONDS
    names = {p.op.name for p in planned if p.has_reference}
    return SHARE_COMPILING * seconds / max(1, len(names))


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


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of the ops."""
    names = list(ops())
    return sorted(rows, key=lambda row: names.index(row["op"]))


def _cases(op: Op) -> Iterator[tuple[str, Case]]:
    yield from (("recorded", case) for case in op.cases if case.size == "large")
    yield from (("sweep", case) for case in op.sweep)


def _resumed(file: str | None, facts: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """The rows of an interrupted run, without those that lacked memory, and its seconds.

    There are none if it ran on another machine.
    """
    if not file or not Path(file).exists():
        return [], 0.0
    before = json.loads(Path(file).read_text())
    if any(before["machine"].get(name) != fact for name, fact in facts.items()):
        return [], 0.0
    rows = [row for row in before["rows"] if not _lacked_memory(row)]
    return rows, before["machine"]["seconds"]


def write_json(file: Path, results: Mapping[str, Any]) -> None:
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
