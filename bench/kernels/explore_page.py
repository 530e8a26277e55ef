"""The results of an exploration, for a terminal and as a page: quantiles, and the worst cases.

The share is the time of a copy over ours, and the ratio is the time of the faster of torch eager and
torch.compile over ours: above 1, ours is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.kernels.report import Row, share

__all__ = ["failed", "line", "markdown", "ratio", "share", "summary", "worst_first"]

SLOWER = 0.95  # a ratio below it is a case in which torch is faster
SHORT_MS = 0.006  # calls that take less are not compared with torch: a launch is most of them
NOT_CHECKED = "unchecked"  # the status of a kernel that only a GPU can run
WORST = 10  # cases of each op on a page
EXPLAINED = """\
The cases are random: their bytes are drawn log-uniformly. The *share* is the time of a copy of a case's compulsory
bytes over ours. The *ratio* is the time of the faster of torch eager and torch.compile over ours: above 1, ours is
faster. torch.compile was timed only where the share was low. Of both there are the tenth percentile and the median.
*Slower* counts the cases with a ratio below 0.95, except calls below 6 µs.
"""


class Quantiles(NamedTuple):
    """The tenth percentile and the median."""

    tenth: float
    median: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quantiles | None:
        """Those of the values that are not None, if there are any."""
        known = [value for value in values if value is not None]
        return cls(*np.percentile(known, (10, 50)).tolist()) if known else None


def failed(row: Row) -> bool:
    """Whether a result was wrong, or there was none."""
    return bool(row["error"]) and row["status"] != NOT_CHECKED


def ratio(row: Row) -> float | None:
    """The time of the faster of torch eager and torch.compile over ours."""
    times = [ms for ms in (row["eager_ms"], row["compile_ms"]) if ms]
    return min(times) / row["ms"] if times and row["ms"] else None


def is_slower(row: Row) -> bool:
    """Whether torch is faster, in a case that is not too short to say so."""
    found = ratio(row)
    return found is not None and found < SLOWER and row["ms"] >= SHORT_MS


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Failures, then the cases in which torch is faster, then by the share of a copy."""

    def rank(row: Row) -> tuple[int, float]:
        if failed(row):
            return 0, 0.0
        if is_slower(row):
            return 1, ratio(row) or 0.0
        found = share(row)
        return (3, 0.0) if found is None else (2, found)

    return sorted(rows, key=rank)


def line(row: Row) -> str:
    """One case as a line: times in us."""
    if row["error"]:
        return f"{row['op']} {row['case']}\n    {row['status'].upper()}: {row['error']}\n    {row['command']}\n"
    if row["ms"] is None:
        return f"{row['op']} {row['case']}: right\n"
    return f"{row['op']} {row['case']}: {_times_of(row)}\n"


def summary(rows: Sequence[Row], worst: int) -> str:
    """The quantiles of each op, then its worst cases with the lines that repeat them."""
    heads = (
        "cases",
        "failed",
        "not checked",
        "share 10 %",
        "median",
        "ratio 10 %",
        "median",
        "slower",
    )
    lines = ["", f"{'op':40}" + "".join(f"{head:>13}" for head in heads)]
    for name, own in _parts(rows):
        shares, ratios = _quantiles(own)
        cells = (
            *(str(len(own)), str(sum(map(failed, own)))),
            str(sum(row["status"] == NOT_CHECKED for row in own)),
            *_shown(shares),
            *_shown(ratios),
            str(sum(map(is_slower, own))),
        )
        lines.append(f"{name:40}" + "".join(f"{cell:>13}" for cell in cells))
    for name in dict.fromkeys(row["op"] for row in rows):
        own = [row for row in rows if row["op"] == name and (row["error"] or row["ms"])]
        if own and worst:
            lines += ["", f"The worst cases of {name}:"]
        for row in worst_first(own)[:worst]:
            said = f"{row['status'].upper()}: {row['error']}" if row["error"] else _times_of(row)
            lines += [f"  {row['case']}: {said}", f"    {row['command']}"]
    return "\n".join(lines) + "\n"


def _parts(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each op, those with contiguous inputs apart from the others."""
    parts: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: not row["contiguous"]):
        name = row["op"] + ("" if row["contiguous"] else ", other layouts")
        parts.setdefault(name, []).append(row)
    yield from sorted(parts.items())


def _quantiles(rows: Sequence[Row]) -> tuple[Quantiles | None, Quantiles | None]:
    return Quantiles.of(map(share, rows)), Quantiles.of(map(ratio, rows))


def _shown(found: Quantiles | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (f"{found.tenth:.2f}", f"{found.median:.2f}")


def _times_of(row: Row) -> str:
    others = (("copy", "copy_ms"), ("eager", "eager_ms"), ("compile", "compile_ms"))
    times = [f"{name} {1000 * row[key]:.1f}" for name, key in others if row[key]]
    found, against = share(row), ratio(row)
    parts = [f"{1000 * row['ms']:.1f} us", *times]
    parts += [] if found is None else [f"share {found:.2f}"]
    parts += [] if against is None else [f"ratio {against:.2f}"]
    return ", ".join(parts)


class _Run(NamedTuple):
    """The results of all files of one GPU: the machines, and the rows by the line that repeats them."""

    machines: list[Mapping[str, Any]]
    rows: dict[str, Row]


def markdown(files: Sequence[Mapping[str, Any]]) -> str:
    """A page of one or more result files, with columns for each GPU.

    Args:
        files: the results. Those of one GPU are put together; of a case that several files have,
            the last one counts.
    """
    runs: dict[str, _Run] = {}
    for results in files:
        found = runs.setdefault(_short(results["machine"]["gpu"]), _Run([], {}))
        found.machines.append(results["machine"] | results["explore"])
        found.rows.update({row["command"]: row for row in results["rows"]})
    parts = [*map(_measured_on, runs.values()), EXPLAINED, _table_of_ops(runs)]
    every = {row["op"] for found in runs.values() for row in found.rows.values()}
    for name in sorted(every):
        parts += [f"## {name}\n", _table_of_cases(name, runs)]
    return "\n".join(parts)


def _short(gpu: str) -> str:
    """The name of a column, such as h200 for NVIDIA H200."""
    return gpu.removeprefix("NVIDIA ").split()[0].strip(",").lower()


def _measured_on(found: _Run) -> str:
    first = found.machines[-1]
    seeds = ", ".join(dict.fromkeys(str(one["seed"]) for one in found.machines))
    sizes = ", ".join(
        dict.fromkeys(f"{_bytes(one['least'])} to {_bytes(one['most'])}" for one in found.machines)
    )
    versions = f"torch {first['torch']}, Triton {first['triton']}, CUDA {first['cuda']}"
    return (
        f"{first['gpu']}, {versions}, {first['date']}: seeds {seeds}; {sizes}; "
        f"{len(found.rows)} cases.\n"
    )


def _bytes(count: int) -> str:
    units = {1 << 20: "MiB", 1 << 10: "KiB", 1: "bytes"}
    size = next(size for size in units if count >= size)
    return f"{count // size} {units[size]}"


def _table_of_ops(runs: Mapping[str, _Run]) -> str:
    columns = ("cases", "failed", "share", "ratio", "slower")
    heads = ["op", *(f"{gpu} {column}" for gpu in runs for column in columns)]
    lines = [_row(heads), _row(["---", *("---:" for _ in heads[1:])])]
    parts = {gpu: dict(_parts(found.rows.values())) for gpu, found in runs.items()}
    for name in sorted({name for own in parts.values() for name in own}):
        cells = [name]
        for gpu in runs:
            own = parts[gpu].get(name, [])
            shares, ratios = (", ".join(_shown(found)) for found in _quantiles(own))
            cells += [str(len(own)), str(sum(map(failed, own))), shares, ratios]
            cells.append(str(sum(map(is_slower, own))))
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _table_of_cases(op: str, runs: Mapping[str, _Run]) -> str:
    """The worst cases of each GPU, with the times on all of them."""
    shown: dict[str, Row] = {}
    for found in runs.values():
        own = [
            row for row in found.rows.values() if row["op"] == op and (row["error"] or row["ms"])
        ]
        shown |= {row["command"]: row for row in worst_first(own)[:WORST]}
    if not shown:
        return "All results were right, and nothing was timed.\n"
    columns = ("us", "copy", "eager", "compile", "share", "ratio")
    heads = ["case", *(f"{gpu} {column}" for gpu in runs for column in columns), "repeat"]
    lines = [_row(heads), _row(["---", *("---:" for _ in heads[2:]), "---"])]
    for row in worst_first(shown.values()):
        cells = [row["case"].replace("|", "\\|")]
        for found in runs.values():
            cells += _cells(found.rows.get(row["command"]))
        lines.append(_row([*cells, f"`{row['command']}`"]))
    return "\n".join(lines) + "\n"


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return [""] * 6
    if row["error"]:
        return [row["status"].replace("_", " "), *[""] * 5]
    times = (row["ms"], row["copy_ms"], row["eager_ms"], row["compile_ms"])
    found = [f"{1000 * ms:.1f}" if ms else "" for ms in times]
    return found + ["" if value is None else f"{value:.2f}" for value in (share(row), ratio(row))]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
