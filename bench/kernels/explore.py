"""A search for slow and wrong calls: random cases of the whole domain of each op.

Each case is checked against the reference. Then our kernels, torch eager and a copy of as many bytes
are timed with a cold L2 cache in the same rounds, as `bench` does. torch.compile joins them where
our share of the copy is low. Another process measures, so that a case that crashes it, or makes it
lose the GPU, is a row of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import triton

from bench.kernels import run as _bench
from bench.kernels.explore_domains import case_of
from bench.kernels.explore_draw import SMALL, Range
from bench.kernels.explore_page import failed, line, share, summary
from bench.kernels.measure import SHORT, Planned, failed_row
from bench.kernels.peers import Peers
from bench.kernels.workers import Workers
from warpcall_kernels import Op, ops

LOW_SHARE = 0.6  # of a copy, below which torch.compile is timed, too
CASES = 40  # of each op, if neither a number nor a time is given
MOST_CASES = 100_000  # of each op, in a run that only time limits
CASES_OF_PROCESS = 6  # of a batch, for each process that compiles ahead
SHARE_AHEAD = 0.4  # of the time that is left, in which processes compile for a batch
AHEAD_S = 300.0  # in which they do so in a run without an end: a compilation may hang
LIMIT_S = 90.0  # for one case, after which its process is ended
LIMIT_INTERPRETED_S = 600.0

Row = dict[str, Any]


class Numbered(NamedTuple):
    """A case with its number, and the command that repeats it."""

    planned: Planned
    number: int
    command: str


class Measurer(Protocol):
    """What measures cases."""

    def compile(self, planned: Sequence[Planned], seconds: float) -> None:
        """Compile for cases ahead, for so many seconds at most."""

    def row(self, planned: Planned) -> Row:
        """The row of a case, also if a process ended."""


class Processes:
    """Measures cases in other processes.

    Args:
        workers: the processes.
        ahead: whether they compile ahead.
        limit_s: for one case.
    """

    def __init__(self, workers: Workers, ahead: bool, limit_s: float) -> None:
        self._workers = workers
        self._ahead = ahead
        self._limit_s = limit_s

    def compile(self, planned: Sequence[Planned], seconds: float) -> None:
        """Compile for cases in parallel, if processes compile ahead."""
        if self._ahead and planned:
            self._workers.compile(planned, seconds)

    def row(self, planned: Planned) -> Row:
        """The row of a case, also if the processes that measured it ended."""
        try:
            return self._workers.row(planned, self._limit_s)[0]
        except RuntimeError as error:
            return failed_row(planned, "crashed", str(error))


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `explore` to a command line."""
    explore = commands.add_parser("explore", help="check and time random cases of the ops' domains")
    explore.add_argument("op", nargs="*", choices=[*ops(), []], help="all when none is named")
    explore.add_argument("--seed", type=int, default=0, help="of the cases")
    explore.add_argument(
        "--seconds", type=float, help="begin no further case when so many seconds have passed"
    )
    explore.add_argument(
        "--cases", type=int, help=f"of each op, by default {CASES}, or any number with --seconds"
    )
    explore.add_argument("--only", type=int, nargs="+", help="the numbers of the only cases to run")
    explore.add_argument("--match", default="", help="only cases whose name contains this text")
    explore.add_argument("--check", action="store_true", help="check results, and time nothing")
    explore.add_argument(
        "--compile",
        action="store_true",
        help=f"time torch.compile in each case, not only where our share is below {LOW_SHARE}",
    )
    explore.add_argument(
        "--rounds", type=int, help=f"of each measurement, by default {SHORT.rounds}"
    )
    explore.add_argument(
        "--ahead", type=int, default=0, help="processes that compile for many cases at once"
    )
    explore.add_argument(
        "--least-bytes", type=int, default=Range().least, help="that a case reads and writes"
    )
    explore.add_argument(
        "--most-bytes", type=int, default=Range().most, help="that a case reads and writes"
    )
    explore.add_argument(
        "--small",
        action="store_true",
        help=f"cases of {SMALL.least} bytes to {SMALL.most >> 10} KB, for machines without a GPU",
    )
    explore.add_argument("--worst", type=int, default=10, help="cases of each op in the summary")
    explore.add_argument("--json", help="a file to write all results to, after each case")


def run(given: argparse.Namespace) -> int:
    """Explore what the command line asks for; returns 1 when a result was wrong."""
    begin = time.monotonic()
    end = begin + given.seconds if given.seconds else None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    within = SMALL if given.small else Range(given.least_bytes, given.most_bytes)
    if not 1 <= within.least <= within.most:
        sys.stderr.write(
            "--least-bytes must be at least 1 and at most --most-bytes, "
            f"got {within.least} and {within.most}\n"
        )
        return 1
    about = {"seed": given.seed, **within._asdict(), "checked_only": given.check}
    facts = _bench.machine() if device == "cuda" else _machine_without_gpu()
    effort = SHORT._replace(rounds=given.rounds or SHORT.rounds, timed=not given.check)
    rows: list[Row] = []

    def write() -> None:
        if given.json:  # after each case, so that an interrupted run keeps its results
            taken = {"seconds": round(time.monotonic() - begin, 1), "rounds": effort.rounds}
            results = {"machine": facts | taken, "explore": about, "rows": rows}
            _bench.write_json(Path(given.json), results)

    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # of the processes that are started
    limit_s = LIMIT_S if device == "cuda" else LIMIT_INTERPRETED_S
    with Workers(max(1, given.ahead), effort, Peers({}), device, references=True) as workers:
        measurer = Processes(workers, given.ahead > 0, limit_s)
        size = max(1, given.ahead * CASES_OF_PROCESS)
        for row in explored(numbered(given, within), measurer, size, end, always=given.compile):
            rows.append(row)
            sys.stdout.write(line(row))
            sys.stdout.flush()
            write()
    sys.stdout.write(summary(rows, given.worst))
    sys.stdout.write(f"{len(rows)} cases in {time.monotonic() - begin:.1f} s\n")
    return int(any(failed(row) for row in rows))


def numbered(given: argparse.Namespace, within: Range) -> Iterator[Numbered]:
    """The cases that the command line asks for: the first of each op, then the second, and so on."""
    chosen = [op for op in ops().values() if not given.op or op.name in given.op]
    count = given.cases or (MOST_CASES if given.seconds else CASES)
    for index in given.only or range(count):
        for op in chosen:
            case = case_of(op, given.seed, index, within)
            if given.match in case.name:
                command = command_of(op, given.seed, index, within)
                yield Numbered(Planned(op, "explore", case), index, command)


def command_of(op: Op, seed: int, index: int, within: Range) -> str:
    """The line that repeats a case."""
    sizes = {
        Range(): "",
        SMALL: " --small",
    }.get(within, f" --least-bytes {within.least} --most-bytes {within.most}")
    return f"python -m bench.kernels explore {op.name} --seed {seed}{sizes} --only {index}"


def explored(
    cases: Iterable[Numbered], measurer: Measurer, size: int, end: float | None, *, always: bool
) -> Iterator[Row]:
    """Measure cases, and those that are slow once more, together with torch.compile.

    Args:
        cases: any number.
        measurer: what measures them.
        size: the number of cases of a batch, for which is compiled ahead.
        end: when no further case begins, by `time.monotonic`; None means never.
        always: whether torch.compile is timed in each case.
    """
    is_over: Callable[[], bool] = lambda: end is not None and time.monotonic() > end
    left = iter(cases)
    while batch := list(itertools.islice(left, size)):
        batch = [one._replace(planned=one.planned._replace(compiled=always)) for one in batch]
        measurer.compile([one.planned for one in batch], _part_of(end))
        slow: list[tuple[Numbered, Row]] = []
        for one in batch:
            if is_over():
                break
            row = measurer.row(one.planned)
            found = share(row)
            if always or found is None or found >= LOW_SHARE:
                yield _described(one, row)
            else:
                slow.append((one, row))
        again = [one.planned._replace(compiled=True) for one, _ in slow]
        measurer.compile(again, _part_of(end))
        for planned, (one, before) in zip(again, slow, strict=True):
            row = before if is_over() else measurer.row(planned)
            # torch.compile may have ended the process, or taken too long.
            kept = before if row["status"] in ("crashed", "timeout") else row
            yield _described(one, kept)
        if is_over():
            return


def _part_of(end: float | None) -> float:
    return AHEAD_S if end is None else max(0.0, SHARE_AHEAD * (end - time.monotonic()))


def _described(one: Numbered, row: Row) -> Row:
    """The row with what repeats its case: the command, and the case as Python."""
    case = one.planned.case
    layouts = {sample.layout for sample in case.inputs.values()}
    return row | {
        "number": one.number,
        "contiguous": layouts == {"contiguous"},
        "command": one.command,
        "python": f"Case({case.name!r}, {dict(case.inputs)}, {dict(case.params)}, seed={case.seed})",
    }


def _machine_without_gpu() -> dict[str, Any]:
    return {
        "gpu": "interpreter, no GPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": None,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }
