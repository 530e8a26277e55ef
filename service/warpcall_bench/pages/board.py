"""The page of a board: who leads in each case, and is the lead real?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from warpcall.jobs.results import BoardEntry, BoardStep, Standing
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.pages import results
from warpcall_bench.pages.view import View, render
from warpcall_bench.summaries.board import NOT_VERIFIED, board, latest_op


@dataclass(frozen=True, slots=True)
class Shown:
    """A case with its leaders, the best one that does not lead, and those without a rank."""

    case: str
    name: str
    entries: list[BoardEntry]
    unranked: list[BoardEntry]
    leaders: list[BoardEntry]
    behind: BoardEntry | None


@dataclass(frozen=True, slots=True)
class Steps:
    """The best time so far of each implementation until now, as lines in a square of 100."""

    axis: LogAxis
    lines: list[tuple[str, int, str]]
    first: str


def board_page(
    session: Session,
    view: View,
    ops: Sequence[str],
    op: str,
    device: str,
    case: str,
    ranks_all: bool = False,
) -> str:
    """The page as text. Empty arguments are chosen by what was measured last."""
    op = op or latest_op(session, view.caller) or (ops[0] if ops else "")
    found = board(session, view.caller, op, device, case, ranks_all=ranks_all)
    ranked = "1" if ranks_all else ""  # the value of `all` in addresses
    hidden = [one for standing in found.standings for one in standing.unranked]
    shown = [_shown(op, standing) for standing in found.standings]
    leads = _leads(shown)
    return render(
        "board.html",
        view,
        ops=ops,
        op=op,
        devices=found.devices,
        device=found.device,
        standings=shown,
        chosen=shown[0] if case and shown else None,
        steps=_drawn(found.steps, [one.implementation for one in found.standings[0].entries])
        if found.steps
        else None,
        best=found.steps,
        case=case,
        leads=leads,
        scores=[one for one in found.scores if one.cases > 1],
        lead=_lead(leads, len(shown)),
        ranked=ranked,
        has_unverified=ranks_all or any(NOT_VERIFIED in one.tags for one in hidden),
        data=view.url("v1", "board", op=op, device=found.device, case=case, all=ranked),
    )


def _shown(op: str, standing: Standing) -> Shown:
    entries = standing.entries
    return Shown(
        standing.case,
        results.case_name(op, standing.case),
        entries,
        standing.unranked,
        [entry for entry in entries if entry.rank == 1],
        next((entry for entry in entries if entry.rank != 1), None),
    )


def _leads(shown: Sequence[Shown]) -> list[tuple[str, int, int]]:
    """By implementation: in how many cases it leads alone, and in how many with others."""
    alone: Counter[str] = Counter()
    shared: Counter[str] = Counter()
    for one in shown:
        leaders = {entry.implementation for entry in one.leaders}
        for name in leaders:
            (alone if len(leaders) == 1 else shared)[name] += 1
    names = sorted({*alone, *shared}, key=lambda name: (-alone[name], -shared[name], name))
    return [(name, alone[name], shared[name]) for name in names]


def _lead(leads: Sequence[tuple[str, int, int]], cases: int) -> str:
    if not leads:
        return ""
    name, alone, shared = leads[0]
    total = numbers.count(cases, "case")
    if not alone:
        return f"Nobody leads alone in any of {total}; {name} shares the lead in {shared}."
    return f"{name} leads alone in {alone} of {total}" + (
        f", and shares the lead in {shared}." if shared else "."
    )


def _drawn(steps: Sequence[BoardStep], names: Sequence[str]) -> Steps | None:
    """The lines of the diagram, in the order of the names; None if nothing became better since the
    first result."""
    if len({step.finished_at for step in steps}) < 2:
        return None
    begin, now = datetime.fromisoformat(steps[0].finished_at), datetime.now(UTC)
    by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for step in steps:
        share = (datetime.fromisoformat(step.finished_at) - begin) / (now - begin)
        by_name[step.implementation].append((100 * min(max(share, 0.0), 1.0), step.relative))
    axis = log_axis([step.relative for step in steps], "×", least_room=1.01)
    colours = results.colours(names)
    lines = [
        (name, colours[name], _staircase(by_name[name], axis)) for name in names if by_name[name]
    ]
    return Steps(axis, lines, steps[0].finished_at)


def _staircase(points: Sequence[tuple[float, float]], axis: LogAxis) -> str:
    found: list[tuple[float, float]] = []
    for x, value in points:
        y = round(100 - axis.at(value), 2)
        if found:
            found.append((round(x, 2), found[-1][1]))
        found.append((round(x, 2), y))
    found.append((100.0, found[-1][1]))
    return " ".join(f"{x},{y}" for x, y in found)
