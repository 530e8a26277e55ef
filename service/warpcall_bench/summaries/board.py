"""The board of an op on a device, from the results that the caller may read.

Only results whose times are a basis for a verdict are ranked, and only of versions that are not
known to be wrong in odd cases. Code of an upload could fake its own time, so that of uploads only verified
kernels are ranked, unless the reader asks for all. The others are listed below them.
Times are relative to the copy in the same job, so that jobs can be compared.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import COMPLETED
from warpcall.jobs.results import Board, BoardEntry, BoardStep, Standing
from warpcall_bench.jobs.measurements import (
    OF_CASE,
    basis_for_rank,
    can_rank,
    has_time,
    measurement,
    series,
    verified,
)
from warpcall_bench.jobs.submissions import readable
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.operator_modules import LIMIT
from warpcall_bench.summaries.scores import scores_of
from warpcall_bench.words import natural
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment

LATEST = 50  # jobs of an op, of which the case that they have in common is taken
MOST_SHARES = 40  # of a leader over time
RECENT = 500  # latest jobs of an op on a device that count
MARGIN = 0.01  # as the least margin of a measurement: smaller differences count as none
MOST_CASES = 200  # of a board: those that were measured last
MOST_POINTS = 2000  # results of one case of which the best ones are found
NOT_VERIFIED = "not verified"  # tag of entries that have no rank because of that
UPLOADED = "/"  # in the names of uploads only, between the user and the name
SEPARATOR = " / "  # between the device and its software, in the class of an environment


def board(
    session: Session,
    caller: Caller,
    op: str,
    device: str,
    case: str,
    *,
    ranks_all: bool = False,
) -> Board:
    """The board of an op.

    Args:
        device: its name; empty for the device that measured the op last.
        case: key of the only case that is wanted, with the steps that led to its best results;
            empty for all cases.
        ranks_all: whether uploads that are not verified are ranked, too.
    """
    devices = _devices(session, caller, op)
    device = device or (devices[0] if devices else "")
    wanted = _Wanted(op, device, case, ranks_all)
    standings = _standings(session, caller, wanted) if device else []
    return Board(
        op=op,
        device=device or None,
        devices=devices,
        standings=standings,
        scores=scores_of(standings),
        steps=_steps(session, caller, wanted, standings[0]) if case and standings else [],
        ranks_all=ranks_all,
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a board shows; see `board`."""

    op: str
    device: str
    case: str
    ranks_all: bool = False

    def can_rank(self, entry: BoardEntry) -> bool:
        """Whether an entry has a rank."""
        return can_rank("ok", entry.tags) and self.may_rank(entry)

    def may_rank(self, entry: BoardEntry) -> bool:
        """Whether an entry has a rank if its time is a basis for one."""
        return self.ranks_all or entry.verified or UPLOADED not in entry.implementation

    def basis_for_rank(self) -> sa.ColumnElement[bool]:
        """Whether a stored row has a rank, in SQL; the same rule as `can_rank`."""
        trusted = sa.or_(verified(), ~Row.implementation.contains(UPLOADED))
        return sa.and_(basis_for_rank(), sa.true() if self.ranks_all else trusted)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads in the case of an op that was measured most often lately.

    Attributes:
        device: on which that was.
        entry: the best valid result.
        sharing: number of implementations that share the lead with it.
        shares: its share of the limit in its latest jobs there, the earliest first.
    """

    case: str
    device: str
    entry: BoardEntry
    sharing: int
    shares: Sequence[float]


def leader(session: Session, caller: Caller, op: str) -> Leader | None:
    """Who leads in the case that most of the latest jobs of an op began with; None if nobody does."""
    latest = session.execute(
        sa.select(Job.environment, JobCase.key)
        .join(JobCase, sa.and_(JobCase.job_number == Job.number, JobCase.position == 0))
        .where(Job.op == op, Job.state.in_(COMPLETED), readable(caller))
        .order_by(Job.number.desc())
        .limit(LATEST)
    )
    found = Counter((device.partition(SEPARATOR)[0], key) for device, key in latest if device)
    if not found:
        return None
    ((device, case), _), *_ = found.most_common(1)  # of several, that of the latest job
    wanted = _Wanted(op, device, case)
    standings = _standings(session, caller, wanted)
    if not standings or not standings[0].entries:
        return None
    first, *others = standings[0].entries
    jobs = _jobs(caller, op, device)
    shares = session.scalars(
        sa.select(Row.limit_us / Row.median_us)
        .join(jobs, jobs.c.number == Row.job_number)
        .where(Row.series_sha256 == series(op, first.implementation, case))
        .where(*_timed(), wanted.basis_for_rank())
        .order_by(Row.job_number.desc())
        .limit(MOST_SHARES)
    ).all()
    sharing = sum(other.rank == first.rank for other in others)
    return Leader(case, device, first, sharing, [share for share in shares[::-1] if share])


def latest_op(session: Session, caller: Caller) -> str | None:
    """The op of the last job that has succeeded, of those that the caller may read."""
    query = sa.select(Job.op).where(readable(caller), Job.state.in_(COMPLETED))
    return session.scalars(query.order_by(Job.number.desc()).limit(1)).first()


def _devices(session: Session, caller: Caller, op: str) -> list[str]:
    """The devices that measured the op, that of the latest job first."""
    latest = sa.func.max(Job.number)
    rows = session.execute(
        sa.select(Job.environment, latest)
        .where(Job.op == op, Job.state.in_(COMPLETED), readable(caller))
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
        .where(Job.op == op, Job.state.in_(COMPLETED), on_device, readable(caller))
        .order_by(Job.number.desc())
        .limit(RECENT)
        .subquery()
    )


def _timed() -> tuple[sa.ColumnElement[bool], ...]:
    """What is on the board: correct results with a time."""
    return (
        Row.status == "ok",
        has_time(),
        Row.implementation != LIMIT,
    )


def _of_case(
    session: Session, jobs: sa.Subquery, op: str, case: str
) -> tuple[sa.ColumnElement[bool], ...]:
    """What only the rows of one case have, by which an index finds them; nothing for all cases."""
    if not case:
        return ()
    asked = session.scalars(
        sa.select(Job.implementations).distinct().join(jobs, jobs.c.number == Job.number)
    )
    names = {name for text in asked for name in json.loads(text)}
    return (Row.series_sha256.in_([series(op, name, case) for name in sorted(names)]),)


def _standings(session: Session, caller: Caller, wanted: _Wanted) -> list[Standing]:
    case, jobs = wanted.case, _jobs(caller, wanted.op, wanted.device)
    unranked = sa.case((wanted.basis_for_rank(), 0), else_=1)
    order = sa.func.row_number().over(
        partition_by=(Row.series_sha256,),
        order_by=(unranked, Row.median_us / Row.limit_us, Row.job_number),
    )
    best = (
        sa.select(Row.job_number, Row.position, Row.implementation, order.label("order"))
        .join(jobs, jobs.c.number == Row.job_number)
        .where(*_timed(), *_of_case(session, jobs, wanted.op, case))
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
        .join(JobCase, OF_CASE)
        .join(jobs, jobs.c.number == Row.job_number)
        .where(best.c.order == 1, *([JobCase.key == case] if case else []))
    ).all()
    by_case: dict[str, list[BoardEntry]] = defaultdict(list)
    for key, row, job_id, user in rows:
        by_case[key].append(_entry(row, key, job_id, user))
    latest = {key: max(one.finished_at for one in entries) for key, entries in by_case.items()}
    shown = sorted(by_case, key=lambda key: latest[key], reverse=True)[:MOST_CASES]
    return [_standing(wanted, key, by_case[key]) for key in sorted(shown, key=natural)]


def _standing(wanted: _Wanted, case: str, entries: Sequence[BoardEntry]) -> Standing:
    """The entries of a case: those that are ranked, and the others."""
    rankable = [one for one in entries if wanted.can_rank(one)]
    others = [
        one if wanted.may_rank(one) else replace(one, tags=[*one.tags, NOT_VERIFIED])
        for one in entries
        if not wanted.can_rank(one)
    ]
    others.sort(key=lambda one: one.relative)
    return Standing(case=case, entries=ranked(rankable), unranked=others)


def _entry(row: Row, case: str, job_id: str, user: str) -> BoardEntry:
    assert row.median_us is not None  # the query left others out
    assert row.limit_us is not None
    measured = measurement(row, case)
    return BoardEntry(
        rank=None,
        implementation=row.implementation,
        median_us=row.median_us,
        relative=row.median_us / row.limit_us,
        relative_low=(measured.ci_low_us or row.median_us) / row.limit_us,
        relative_high=(measured.ci_high_us or row.median_us) / row.limit_us,
        job=job_id,
        user=user,
        finished_at=moment(row.finished_ms),
        tags=measured.tags,
        verified=measured.verified,
    )


def ranked(entries: Sequence[BoardEntry]) -> list[BoardEntry]:
    """The entries with their ranks. An entry shares the rank of the best one of a rank if their
    intervals overlap, or are nearer to each other than MARGIN."""
    found: list[BoardEntry] = []
    head: BoardEntry | None = None  # the best one of the present rank
    for entry in sorted(entries, key=lambda one: one.relative):
        shares = head is not None and entry.relative_low <= head.relative_high * (1 + MARGIN)
        if head is None or not shares:
            head = replace(entry, rank=len(found) + 1)
        found.append(replace(entry, rank=head.rank))
    return found


def _steps(
    session: Session, caller: Caller, wanted: _Wanted, standing: Standing
) -> list[BoardStep]:
    """The results that were better than all before, in the order of the jobs."""
    jobs = _jobs(caller, wanted.op, wanted.device)
    names = [series(wanted.op, entry.implementation, standing.case) for entry in standing.entries]
    rows = session.execute(
        sa.select(
            Row.implementation, Row.median_us, Row.limit_us, Row.finished_ms, jobs.c.id.label("job")
        )
        .join(jobs, jobs.c.number == Row.job_number)
        .where(Row.series_sha256.in_(names), *_timed(), wanted.basis_for_rank())
        .order_by(Row.job_number)
        .limit(MOST_POINTS)
    ).all()
    best: dict[str, float] = {}
    steps = []
    for row in rows:
        relative = (row.median_us or 1.0) / (row.limit_us or 1.0)
        if relative < best.get(row.implementation, relative + 1):
            best[row.implementation] = relative
            steps.append(
                BoardStep(
                    implementation=row.implementation,
                    relative=relative,
                    job=row.job,
                    finished_at=moment(row.finished_ms),
                )
            )
    return steps
