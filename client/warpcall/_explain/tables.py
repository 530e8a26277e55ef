"""Formats compile reports, and the differences of two, for a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from warpcall._cli.tables import by_case, one_line
from warpcall.compile_reports import CompileReport, KernelReport, TextName, paired

COLUMNS = ("regs", "spill", "stack", "shared", "warps", "stages", "occupancy", "limited by")
WHAT = "of a thread: registers, bytes spilled, bytes of stack; of a block: bytes of shared memory, warps"
LIMITS = "occupancy: share of the warps that a multiprocessor could have, and what allows no more"
SHORT = {"registers": "regs", "shared memory": "shared"}
MOST_DIFFERENT = 2000  # lines of a text; comparing more could take minutes
MOST_SHOWN = 400  # lines of the differences of a text


def report_lines(found: CompileReport, name: str) -> Iterator[str]:
    """A table of the kernels, and what a reader needs to judge it.

    Args:
        name: of the file that was compiled, if it is no implementation.
    """
    yield _about(found, name)
    if found.kernels:
        yield WHAT
        yield LIMITS
        rows = [(_launch(one), "", _cells(one)) for one in found.kernels]
        yield from by_case(COLUMNS, rows)
        for one in found.kernels:
            if not one.resident_blocks:
                yield f"{one.label} cannot be launched: a block needs too much: {', '.join(one.limited_by)}"
    else:
        yield "it launches no Triton kernel"
    yield from _remarks(found)


def text_lines_of(found: CompileReport, name: TextName) -> Iterator[str]:
    """One text of each kernel."""
    for one in found.kernels:
        text = one.texts[name]
        yield f"{name} of {one.label}"
        yield from text.text.expandtabs().splitlines()
        if text.cut:
            yield f"the text has {text.nbytes:,} bytes, the first lines are shown"


def difference_lines(
    old: CompileReport, new: CompileReport, names: tuple[str, str], name: TextName
) -> Iterator[str]:
    """The kernels of two reports side by side, and the differences of one of their texts.

    Args:
        names: of the two files, as in `report_lines`.
    """
    yield f"old: {_about(old, names[0])}"
    yield f"new: {_about(new, names[1])}"
    yield WHAT
    pairs = paired(new, old)
    rows = []
    for b, a in pairs:
        versions = (("old", a), ("new", b))
        launches = {_launch(one): label for label, one in reversed(versions) if one}
        head = "; ".join(
            text if len(launches) == 1 else f"{label}: {text}" for text, label in launches.items()
        )
        rows += [(head, label, _cells(one) if one else ("absent",)) for label, one in versions]
    if rows:
        yield from by_case(COLUMNS, rows)
    for b, a in pairs:
        if a is not None and b is not None:
            yield from _text_difference(a, b, name)
    for report in (old, new):
        yield from _remarks(report)


def _about(found: CompileReport, name: str) -> str:
    return f"{found.implementation or name}: {found.case}, {found.gpu}, Triton {found.triton}, ptxas {found.ptxas}"


def _remarks(found: CompileReport) -> Iterator[str]:
    for failure in found.failures:
        yield f"cannot be compiled: {one_line(failure)}"
    if found.stopped:
        yield f"it ended early, so launches may be missing: {one_line(found.stopped)}"


def _launch(one: KernelReport) -> str:
    grid = "x".join(map(str, one.grid))
    times = "" if one.launches == 1 else f", {one.launches:,} launches"
    return f"{one.name}, grid {grid}{times}{f', {one.config}' if one.config else ''}"


def _cells(one: KernelReport) -> tuple[str, ...]:
    return (
        str(one.registers),
        str(one.spill_store_bytes + one.spill_load_bytes),
        str(one.stack_bytes),
        str(one.shared_bytes),
        str(one.warps),
        str(one.stages),
        f"{one.occupancy:.0%}",
        "+".join(SHORT.get(name, name) for name in one.limited_by),
    )


def _text_difference(a: KernelReport, b: KernelReport, name: TextName) -> Iterator[str]:
    old, new = a.comparable_lines(name), b.comparable_lines(name)
    if old == new:
        yield f"{name} of {b.label}: no difference"
        return
    if max(len(old), len(new)) > MOST_DIFFERENT:
        yield (
            f"{name} of {b.label}: different; of more than {MOST_DIFFERENT:,} lines the differences "
            "are not shown"
        )
        return
    lines = list(difflib.unified_diff(old, new, "old", "new", lineterm=""))
    yield f"{name} of {b.label}:"
    yield from lines[:MOST_SHOWN]
    if len(lines) > MOST_SHOWN:
        yield f"and {len(lines) - MOST_SHOWN:,} more lines"
