"""The races of a job as its page shows them: who won, the ranking, and how they stood meanwhile."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED
from warpcall.jobs.results import CaseDetails, Measurement, RaceHistory, Results
from warpcall.races import Race, RaceEntry, judge
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import EvenAxis, LogAxis, even_axis, log_axis
from warpcall_bench.jobs import answers as job_answers
from warpcall_bench.jobs.events import latest_progress
from warpcall_bench.jobs.tables import Job
from warpcall_bench.pages.results import COLOURS, case_name, colours, shown
from warpcall_bench.runs.stored_results import within_bounds

MOST_CASES = 64  # whose results are read for the ranking over all of them
MOST_EVENTS = 2000  # of the case that races now
MOST_NAMES = 5  # in a sentence
SHOWN_FIRST = 16  # rows of the ranking; the others can be opened
AT_ONCE = 8  # up to so many candidates enter at the same time, and others later
SAME = 1.0  # percent; within it, times count as the same
LEAST = 0.1  # percent beyond the fastest: the lower end of the plot

NO_TEXTS: Mapping[str, str] = MappingProxyType({})

Point = tuple[int, float | None]  # rounds, and a ratio to the fastest; None while it does not race


@dataclass(frozen=True, slots=True)
class RaceLine:
    """A candidate in a plot. Places are in percent: x from the left, y from the top.

    Attributes:
        paths: the parts of the line, as the points of polylines in a square of 100.
        end: where it ends.
        has_left: whether it left before the end of the race.
        leads: whether it is the fastest of the end, or of now.
        text: what a reader sees who points at its end.
    """

    name: str
    colour: int
    paths: list[str]
    end: tuple[float, float]
    has_left: bool
    leads: bool
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """How far each candidate was behind the fastest of the end, or of now, over the rounds."""

    title: str
    position: int
    x: LogAxis | EvenAxis
    y: LogAxis
    lines: list[RaceLine]
    same: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """A row of the ranking.

    Attributes:
        at, low, high: places of its ratio to the fastest and of the interval's ends, in percent.
        left: when it left, and why; or why it has no rank.
    """

    entry: RaceEntry
    colour: int
    at: float | None
    low: float | None
    high: float | None
    status: str
    left: str


@dataclass(frozen=True, slots=True)
class CaseRow:
    """How the race of one case ended."""

    position: int
    name: str
    outcome: str
    fastest: str
    timed: str
    fully: str


@dataclass(frozen=True, slots=True)
class RacePage:
    """What the page of a job says of its races.

    Attributes:
        lead: what came of it, in one sentence; empty before the first case has ended.
        cost: the device time, beside that of measuring all fully.
        now: how the race of now stands; empty if none runs.
        rows, axis: the ranking over all cases that have ended; the axis is of ratios.
        cases: those that have ended; empty if the job has one.
        never_best: a sentence about them; empty if there are none.
        charts: of the race of now, and of the cases of this part of the page.
        too_many: whether there are more cases than a ranking is made of.
    """

    lead: str = ""
    cost: str = ""
    now: str = ""
    rows: list[Ranked] = field(default_factory=list)
    axis: LogAxis | None = None
    cases: list[CaseRow] = field(default_factory=list)
    never_best: str = ""
    charts: list[Chart] = field(default_factory=list)
    too_many: bool = False

    @property
    def first_rows(self) -> list[Ranked]:
        """The rows that are seen at once."""
        return self.rows[:SHOWN_FIRST]

    @property
    def other_rows(self) -> list[Ranked]:
        """The rows that a reader opens."""
        return self.rows[SHOWN_FIRST:]


def race_of(
    session: Session, row: Job, rows: Sequence[Measurement], first: int, most: int
) -> RacePage:
    """What the page of a job says of its races.

    Args:
        rows: all rows of the job.
        first, most: the part of the cases whose plots are shown.
    """
    names: list[str] = json.loads(row.implementations)
    ranks_all = row.cases_total <= MOST_CASES
    begin, number = (0, MOST_CASES) if ranks_all else (first, most)
    ended = [
        case
        for case in job_answers.cases(session, row, rows, begin, number)
        if case.race is not None
    ]
    chosen = _colours(names, rows)
    charts = [
        chart
        for case in ended
        if first <= case.position < first + most and (chart := _chart_of(row, case, chosen))
    ]
    page = RacePage(charts=charts, too_many=not ranks_all, cases=_case_rows(row, ended))
    if ranks_all and ended:
        page = _ranked(row, page, ended, rows, names, chosen)
    if row.state in UNFINISHED:
        page = _with_now(session, row, page, names)
    return page


def _ranked(
    row: Job,
    page: RacePage,
    ended: Sequence[CaseDetails],
    rows: Sequence[Measurement],
    names: Sequence[str],
    chosen: Mapping[str, int],
) -> RacePage:
    positions = {case.position for case in ended}
    results = Results(
        id=row.id,
        state=row.state,  # type: ignore[arg-type]  # the database holds only states
        environment=row.environment,
        fingerprint=None,
        remarks=[],
        measurements=[one for one in rows if one.position in positions],
        cases=[*ended],
    )
    found = judge(results, row.op, names)
    ratios = [
        value
        for one in found.entries
        for value in (one.ratio, one.ratio_low, one.ratio_high)
        if value is not None
    ]
    axis = log_axis(ratios, "×", around=1.0)
    by_name = {name: [one for one in rows if one.implementation == name] for name in names}
    ranked = [_row(one, by_name[one.implementation], chosen, axis) for one in found.entries]
    return replace(
        page,
        lead=_lead(found, len(ended), row.cases_total),
        cost=_cost(found),
        rows=ranked,
        axis=axis,
        never_best=_never_best(found),
    )


def _lead(found: Race, ended: int, total: int) -> str:
    fastest = [one.implementation for one in found.entries if one.rank == 1]
    others = _listed([name for name in fastest if name != found.winner])
    about = ""
    if total > 1:
        about = f", by the geometric mean over {numbers.count(ended, 'case')}"
    if found.winner is None:
        return "No implementation has times that are a basis for a verdict."
    if found.outcome == "winner":
        return f"{found.winner} is the fastest{about}."
    if found.outcome == "same":
        return f"{found.winner} is the fastest{about}, and the same within 1 %: {others}."
    if not others:  # the time was up before all have raced
        return f"Undecided: {found.winner} leads{about}, and others had no turn."
    return f"Undecided: {found.winner} leads{about}, and as fast may be: {others}."


def _listed(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} others"


def _cost(found: Race) -> str:
    text = f"Timed calls took {_seconds(found.device_s)}"
    if not found.full_device_s or found.device_s <= 0:
        return f"{text}."
    share = numbers.percent(found.device_s / found.full_device_s)
    full = _seconds(found.full_device_s)
    return f"{text}: {share} of the {full} or so that measuring all fully would take."


def _seconds(seconds: float) -> str:
    """A duration; a race is often shorter than a second."""
    return f"{numbers.significant(seconds, 2)} s" if seconds < 10 else numbers.span(seconds)


def _never_best(found: Race) -> str:
    if len(found.cases) < 2 or not found.never_best:
        return ""
    return f"Never the fastest: {', '.join(found.never_best)}."


def _row(
    entry: RaceEntry, rows: Sequence[Measurement], chosen: Mapping[str, int], axis: LogAxis
) -> Ranked:
    at = low = high = None
    if entry.ratio is not None:
        at = axis.at(entry.ratio)
        low = axis.at(entry.ratio_low or axis.low)
        high = axis.at(entry.ratio_high or axis.high)
    failed = next((one for one in rows if one.status != "ok"), None)
    return Ranked(
        entry=entry,
        colour=chosen.get(entry.implementation, COLOURS),
        at=at,
        low=low,
        high=high,
        status="" if failed is None else shown(failed),
        left=entry.error or _left(rows),
    )


def _left(rows: Sequence[Measurement]) -> str:
    """When an implementation left, and why: in the only case, or in how many of several."""
    races = [one.race for one in rows if one.race is not None]
    left = [one for one in races if one.left_round is not None]
    if not left:
        return "to the end" if races else ""
    if len(races) > 1:
        return f"left {len(left)} of {len(races)} races"
    (one,) = left
    after = f"left after {numbers.count(one.left_round or 0, 'round')}"
    if one.left_s is not None:
        after += f", {_seconds(one.left_s)}"
    times = f"{numbers.ratio(one.left_ratio.ratio)} times" if one.left_ratio else "slower than"
    return f"{after}: {'the same as' if one.left_why == 'same' else times} {one.left_leader}"


def _case_rows(row: Job, ended: Sequence[CaseDetails]) -> list[CaseRow]:
    if row.cases_total < 2:
        return []
    return [
        CaseRow(
            case.position,
            case_name(row.op, case.case),
            case.race.outcome,
            _listed(case.race.fastest),
            _seconds(case.race.device_s),
            "" if case.race.full_device_s is None else _seconds(case.race.full_device_s),
        )
        for case in ended
        if case.race is not None
    ]


def _colours(names: Sequence[str], rows: Sequence[Measurement]) -> dict[str, int]:
    """A colour for each of few implementations. Of many, those with the best ranks have one, and the
    others are grey."""
    if len(names) <= COLOURS:
        return colours(names)
    ranks: dict[str, list[int]] = {}
    for one in rows:
        if one.race is not None and one.race.rank is not None:
            ranks.setdefault(one.implementation, []).append(one.race.rank)
    best = sorted(ranks, key=lambda name: (-len(ranks[name]), sum(ranks[name])))[:COLOURS]
    return {**dict.fromkeys(names, COLOURS), **{name: n for n, name in enumerate(best)}}


def racing_colours(names: Sequence[str], racing: Collection[str]) -> dict[str, int]:
    """A colour for each of few implementations, and of many for those that race now."""
    if len(names) <= COLOURS:
        return colours(names)
    now = [name for name in names if name in racing]
    return {**dict.fromkeys(names, COLOURS), **{n: i % COLOURS for i, n in enumerate(now)}}


def _chart_of(row: Job, case: CaseDetails, chosen: Mapping[str, int]) -> Chart | None:
    """The plot of a case that has ended; None if the result has no history."""
    race = case.race
    if race is None or race.history is None:
        return None
    behind = {
        one.implementation: one.race.to_leader.ratio
        for one in case.measurements
        if one.race is not None and one.race.to_leader is not None
    }
    points = _points(race.history, behind)
    ends: dict[str, tuple[int, float, str]] = {}
    for one in case.measurements:
        left = one.race
        if left is None or left.left_round is None or left.left_ratio is None:
            continue
        text = f"{one.implementation} {_left([one])}"
        ratio = left.left_ratio.ratio * behind.get(left.left_leader or "", 1.0)
        ends[one.implementation] = left.left_round, ratio, text
    title = case_name(row.op, case.case)
    return _chart(title, case.position, points, ends, {*race.fastest}, chosen)


def _points(history: RaceHistory, behind: Mapping[str, float]) -> dict[str, list[Point]]:
    """The ratios to the fastest of the end: those to the leader of then, times its own ratio. Otherwise
    all lines would jump where a faster one enters.

    Args:
        behind: the ratio of each to the fastest of the end.
    """
    scales = []
    for number in range(len(history.rounds)):
        ratios = {name: ones[number] for name, ones in history.ratios.items()}
        leaders = [name for name, ratio in ratios.items() if ratio == 1.0]
        scales.append(min((behind.get(name, 1.0) for name in leaders), default=1.0))
    return {
        name: [
            (rounds, None if ratio is None else ratio * scale)
            for rounds, ratio, scale in zip(history.rounds, ratios, scales, strict=True)
        ]
        for name, ratios in history.ratios.items()
    }


def _chart(
    title: str,
    position: int,
    points: Mapping[str, list[Point]],
    ends: Mapping[str, tuple[int, float, str]],
    fastest: set[str],
    chosen: Mapping[str, int],
    texts: Mapping[str, str] = NO_TEXTS,
) -> Chart | None:
    """A plot of the ratios to the fastest.

    Args:
        ends: of those that left: the round, the ratio, and a text about it.
        texts: about others; without one they raced to the end.
    """
    whole = {name: [*ones] for name, ones in points.items()}
    for name, (rounds, ratio, _) in ends.items():
        before = [one for one in whole.get(name, []) if one[0] < rounds]
        whole[name] = [*before, (rounds, ratio)]
    known = [(n, ratio) for ones in whole.values() for n, ratio in ones if ratio is not None]
    if not known:
        return None
    last = max(rounds for rounds, _ in known)
    # Where all enter at once, many leave in the first rounds.
    x: LogAxis | EvenAxis = even_axis(max(last, 1))
    if len(whole) <= AT_ONCE:
        x = log_axis([min(rounds for rounds, _ in known), last], least_room=1.01)
    y = log_axis([LEAST, *(_beyond(ratio) for _, ratio in known)], " %", around=SAME)
    lines = []
    for name, ones in whole.items():
        paths = _paths(ones, x, y)
        at = [(rounds, ratio) for rounds, ratio in ones if ratio is not None]
        if not at:
            continue
        text = ends[name][2] if name in ends else texts.get(name, f"{name} raced to the end")
        lines.append(
            RaceLine(
                name,
                chosen.get(name, COLOURS),
                paths,
                _place(*at[-1], x, y),
                name in ends,
                name in fastest,
                text,
            )
        )
    lines.sort(key=lambda one: (one.leads, one.colour != COLOURS))  # the last one is on top
    return Chart(title, position, x, y, lines, round(100 - y.at(SAME), 2))


def _paths(points: Sequence[Point], x: LogAxis | EvenAxis, y: LogAxis) -> list[str]:
    """The parts of a line. It has gaps where the candidate waited for its next turn."""
    parts: list[list[str]] = [[]]
    for rounds, ratio in points:
        if ratio is None:
            parts.append([])
        else:
            at = _place(rounds, ratio, x, y)
            parts[-1].append(f"{at[0]},{at[1]}")
    return [" ".join(part) for part in parts if len(part) > 1]


def _place(rounds: int, ratio: float, x: LogAxis | EvenAxis, y: LogAxis) -> tuple[float, float]:
    return x.at(rounds), round(100 - y.at(_beyond(ratio)), 2)


def _beyond(ratio: float) -> float:
    """Percent of time beyond the fastest, at least LEAST."""
    return max(100 * (ratio - 1), LEAST)


def _with_now(session: Session, row: Job, page: RacePage, names: Sequence[str]) -> RacePage:
    """The page with the race that runs now, from the job's events."""
    case = job_answers.first_without_result(session, row)
    if case is None:
        return page
    found = latest_progress(session, row.number, MOST_EVENTS)
    events = [within_bounds(json.loads(text)) for text in found]
    events = [one for one in events if one.get("position") == case.position]
    stood = [one for one in events if one.get("phase") == "rounds" and one.get("medians_us")]
    left = [one for one in events if one.get("phase") == "left" and one.get("ratio")]
    latest = {name: us for one in stood for name, us in one["medians_us"].items()}
    leader = str(stood[-1].get("leader")) if stood else ""
    best = latest.get(leader) or min(latest.values(), default=1.0)
    points: dict[str, list[Point]] = {}
    for one in stood:
        medians = one["medians_us"]
        for name in {*points, *medians}:
            us = medians.get(name)
            points.setdefault(name, []).append((int(one.get("rounds") or 0), us and us / best))
    ends = {}
    for one in left:
        name, rounds = str(one.get("implementation")), int(one.get("rounds") or 0)
        if name not in {*(stood[-1]["medians_us"] if stood else ())}:
            times = f"{numbers.ratio(one['ratio'])} times {one.get('leader')}"
            text = f"{name} left after {numbers.count(rounds, 'round')}: {times}"
            scale = latest.get(str(one.get("leader")), best) / best
            ends[name] = rounds, float(one["ratio"]) * scale, text
    racing = [name for name in names if stood and name in stood[-1]["medians_us"]]
    texts = {name: f"{name} {'races' if name in racing else 'waits'}" for name in points}
    title = f"{case_name(row.op, case.key)}, now"
    chart = _chart(
        title, case.position, points, ends, {leader}, racing_colours(names, racing), texts
    )
    charts = [*([chart] if chart is not None else []), *page.charts]
    return replace(page, now=_standing(stood[-1] if stood else {}, len(ends)), charts=charts)


def _standing(last: Mapping[str, object], left: int) -> str:
    """How the race of now stands, such as "ann/a leads. 3 race, 12 wait, 4 have left."."""
    if not last.get("leader"):
        return ""
    counts = [
        f"{last.get('racing') or 0} race",
        *([f"{last['waiting']} wait"] if last.get("waiting") else []),
        *([f"{left} left"] if left else []),
    ]
    return f"{last['leader']} leads: {', '.join(counts)}."
