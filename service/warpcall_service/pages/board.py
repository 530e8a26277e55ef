"""The board of an op on a GPU: who leads in each case, and is the lead real?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pydantic_core
import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_service.drawing import numbers
from warpcall_service.drawing.plots import LogAxis, log_axis
from warpcall_service.identity import Caller
from warpcall_service.jobs import lifecycle
from warpcall_service.jobs.submissions import readable
from warpcall_service.pages import results
from warpcall_service.pages.view import View, render
from warpcall_service.runs.operator_modules import LIMIT
from warpcall_service.store.tables import Job, JobCase
from warpcall_service.store.tables import Measurement as Row
from warpcall_service.store.times import moment

RECENT = 500  # latest jobs of an op on a GPU that count
MARGIN = 0.01  # as the least margin of a measurement: smaller differences count as none
MOST_CASES = 200  # of a board: those that were measured last
MOST_POINTS = 2000  # of the diagram of one case
SEPARATOR = " / "  # between the device and its software, in the class of an environment


@dataclass(frozen=True, slots=True)
class Entry:
    """The best valid result of an implementation in a case.

    Attributes:
        relative: its median, over the time of a copy in the same job.
        low, high: ends of its 95 % interval, likewise.
        rank: 1 for the leaders. Entries without a real difference share a rank.
    """

    implementation: str
    median_us: float
    relative: float
    low: float
    high: float
    job: str
    user: str
    at: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """A case with its entries, the best first."""

    case: str
    name: str
    entries: list[Entry]

    @property
    def leaders(self) -> list[Entry]:
        """The entries that share the first rank."""
        return [entry for entry in self.entries if entry.rank == 1]

    @property
    def behind(self) -> Entry | None:
        """The best entry that does not lead."""
        return next((entry for entry in self.entries if entry.rank > 1), None)


@dataclass(frozen=True, slots=True)
class Steps:
    """The best time so far of each implementation, as lines in a square of 100."""

    axis: LogAxis
    lines: list[tuple[str, int, str]]
    first: str
    last: str


def board_page(
    session: Session, view: View, ops: Sequence[str], op: str, device: str, case: str
) -> str:
    """The page as text. Empty arguments are chosen by what was measured last."""
    op = op or _latest_op(session, view.caller) or (ops[0] if ops else "")
    devices = _devices(session, view.caller, op)
    device = device or (devices[0] if devices else "")
    standings = _standings(session, view.caller, op, device) if device else []
    chosen = next((one for one in standings if one.case == case), None) if case else None
    return render(
        "board.html",
        view,
        ops=ops,
        op=op,
        devices=devices,
        device=device,
        standings=standings,
        chosen=chosen,
        steps=None if chosen is None else _steps(session, view.caller, op, device, chosen),
        case=case,
        leads=_leads(standings),
        lead=_lead(standings),
    )


def _latest_op(session: Session, caller: Caller) -> str | None:
    query = sa.select(Job.op).where(readable(caller), Job.state == "succeeded")
    return session.scalars(query.order_by(Job.number.desc()).limit(1)).first()


def _devices(session: Session, caller: Caller, op: str) -> list[str]:
    """The devices that measured the op, that of the latest job first."""
    latest = sa.func.max(Job.number)
    rows = session.execute(
        sa.select(Job.environment, latest)
        .where(Job.op == op, Job.state == "succeeded", readable(caller))
        .group_by(Job.environment)
        .order_by(latest.desc())
    )
    names = (environment.partition(SEPARATOR)[0] for environment, _ in rows if environment)
    return list(dict.fromkeys(names))


def _jobs(caller: Caller, op: str, device: str) -> sa.Subquery:
    on_device = sa.or_(
        Job.environment == device,
        Job.environment.startswith(device + SEPARATOR, autoescape=True),
    )
    return (
        sa.select(Job.number, Job.id, Job.user_name)
        .where(Job.op == op, Job.state == "succeeded", on_device, readable(caller))
        .order_by(Job.number.desc())
        .limit(RECENT)
        .subquery()
    )


def _valid() -> tuple[sa.ColumnElement[bool], ...]:
    """What counts: correct, with a time, and not faster than memory allows."""
    return (
        Row.status == "ok",
        Row.median_us > 0,
        Row.limit_us > 0,
        Row.implementation != LIMIT,
        Row.summary.not_like('%"suspect"%'),
    )


def _standings(session: Session, caller: Caller, op: str, device: str) -> list[Standing]:
    jobs = _jobs(caller, op, device)
    order = sa.func.row_number().over(
        partition_by=(Row.series_sha256,), order_by=(Row.median_us / Row.limit_us, Row.job_number)
    )
    best = (
        sa.select(Row.job_number, Row.position, Row.implementation, order.label("order"))
        .join(jobs, jobs.c.number == Row.job_number)
        .where(*_valid())
        .subquery()
    )
    rows = session.execute(
        sa.select(JobCase.key, Row, jobs.c.id, jobs.c.user_name)
        .select_from(best)
        .join(
            Row,
            sa.and_(
                Row.job_number == best.c.job_number,
                Row.position == best.c.position,
                Row.implementation == best.c.implementation,
            ),
        )
        .join(
            JobCase, sa.and_(JobCase.job_number == Row.job_number, JobCase.position == Row.position)
        )
        .join(jobs, jobs.c.number == Row.job_number)
        .where(best.c.order == 1)
    ).all()
    by_case: dict[str, list[Entry]] = defaultdict(list)
    for key, row, job_id, user in rows:
        by_case[key].append(_entry(row, job_id, user))
    found = [
        Standing(key, results.case_name(op, key), _ranked(entries))
        for key, entries in by_case.items()
    ]
    found.sort(key=lambda one: max(entry.at for entry in one.entries), reverse=True)
    return sorted(found[:MOST_CASES], key=lambda one: _natural(one.name))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts numbers in names by their value."""
    parts = "".join(c if c.isdigit() else f" {c} " for c in name).split()
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _entry(row: Row, job_id: str, user: str) -> Entry:
    assert row.median_us is not None  # the query left others out
    assert row.limit_us is not None
    stored = pydantic_core.from_json(row.summary)
    return Entry(
        row.implementation,
        row.median_us,
        row.median_us / row.limit_us,
        (stored.get("ci_low_us") or row.median_us) / row.limit_us,
        (stored.get("ci_high_us") or row.median_us) / row.limit_us,
        job_id,
        user,
        moment(row.finished_ms),
    )


def _ranked(entries: list[Entry]) -> list[Entry]:
    """The entries with their ranks. An entry shares the rank of the best one of a rank if their
    intervals overlap, or are nearer to each other than MARGIN."""
    found: list[Entry] = []
    for entry in sorted(entries, key=lambda one: one.relative):
        head = next((one for one in found if one.rank == found[-1].rank), None)
        shared = head is not None and entry.low <= head.high * (1 + MARGIN)
        rank = found[-1].rank if shared else len(found) + 1
        values = {name: getattr(entry, name) for name in Entry.__slots__}
        found.append(Entry(**{**values, "rank": rank}))
    return found


def _leads(standings: Sequence[Standing]) -> list[tuple[str, int, int]]:
    """By implementation: in how many cases it leads alone, and in how many with others."""
    alone: Counter[str] = Counter()
    shared: Counter[str] = Counter()
    for one in standings:
        leaders = {entry.implementation for entry in one.leaders}
        for name in leaders:
            (alone if len(leaders) == 1 else shared)[name] += 1
    names = sorted({*alone, *shared}, key=lambda name: (-alone[name], -shared[name], name))
    return [(name, alone[name], shared[name]) for name in names]


def _lead(standings: Sequence[Standing]) -> str:
    found = _leads(standings)
    if not found:
        return ""
    name, alone, shared = found[0]
    total = numbers.count(len(standings), "case")
    if not alone:
        return f"Nobody leads alone in any of {total}; {name} shares the lead in {shared}."
    return f"{name} leads alone in {alone} of {total}" + (
        f", and shares the lead in {shared}." if shared else "."
    )


def _steps(
    session: Session, caller: Caller, op: str, device: str, standing: Standing
) -> Steps | None:
    jobs = _jobs(caller, op, device)
    names = [entry.implementation for entry in standing.entries]
    series = [lifecycle.series(op, name, standing.case) for name in names]
    rows = session.execute(
        sa.select(Row.implementation, Row.median_us, Row.limit_us, Row.finished_ms)
        .join(jobs, jobs.c.number == Row.job_number)
        .where(Row.series_sha256.in_(series), *_valid())
        .order_by(Row.job_number)
        .limit(MOST_POINTS)
    ).all()
    first, last = min(row.finished_ms for row in rows), max(row.finished_ms for row in rows)
    if first == last:
        return None
    best: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, median_us, limit_us, at in rows:
        relative = (median_us or 1.0) / (limit_us or 1.0)
        if not best[name] or relative < best[name][-1][1]:
            best[name].append((100 * (at - first) / (last - first), relative))
    axis = log_axis([value for found in best.values() for _, value in found], "×", least_room=1.01)
    colours = results.colours(names)
    lines = [(name, colours[name], _staircase(found, axis)) for name, found in best.items()]
    return Steps(axis, lines, moment(first), moment(last))


def _staircase(points: Sequence[tuple[float, float]], axis: LogAxis) -> str:
    found: list[tuple[float, float]] = []
    for x, value in points:
        y = round(100 - axis.at(value), 2)
        if found:
            found.append((round(x, 2), found[-1][1]))
        found.append((round(x, 2), y))
    found.append((100.0, found[-1][1]))
    return " ".join(f"{x},{y}" for x, y in found)
