"""Formats jobs, results, comparisons and the queue as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from rich.table import Table

from warpcall._cli.output import human_bytes, plural, table_of
from warpcall._jobs.progress import span, waiting
from warpcall.devices import Device, DeviceReading
from warpcall.health import Health
from warpcall.jobs import JobInfo, Queue, QueueEntry, lacking, scores
from warpcall.jobs.outcomes import LIMIT, UNDECIDED, chip_of, why_undecided
from warpcall.jobs.results import (
    Board,
    Comparison,
    History,
    Results,
    label_of,
    status_shown,
    why_no_verdict,
)
from warpcall.nodes import Node

RESULTS = ("median", "95 % CI", "ratio", "95 % CI", "verdict", "GB/s", "limit")
LINE_WIDTH = 80
TAB_WIDTH = 8
MAX_TRACEBACK = 4096  # characters
INDENT = "  "
SHORTEST_LABEL = len("torch.compile")  # of labels up to this one, none has a line of its own
MOST_UNDECIDED = 8  # lines
BOARD = ("rank", "median", "of copy", "95 % CI", "limit")
NOT_VERIFIED = "not verified"  # tag of an entry of a board
ALL_RANKED = "of uploads only verified kernels have a rank; --all ranks all of them"
COMPARED = ("a", "b", "ratio", "95 % CI", "margin", "verdict")


def results_lines(results: Results, first: str) -> list[str]:
    """A line for each case, and below it a row for each implementation.

    Args:
        first: the implementation with which the others are compared.
    """
    rows = []
    for row in results.measurements:
        status = status_shown(row.status, row.median_us)
        cells = (
            microseconds(row.median_us),
            interval(microseconds, row.ci_low_us, row.ci_high_us),
            ratio(row.ratio),
            interval(ratio, row.ratio_low, row.ratio_high),
            "limit" if row.implementation == LIMIT else row.verdict or "",
            "" if row.gb_per_s is None else f"{row.gb_per_s:.4g}",
            "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}",
        )
        label = label_of(row.implementation, verified=row.verified)
        rows.append((row.case, label, (status,) if status else cells))
    return [
        f"times in us; ratio and verdict: to {first}, above 1 takes longer; limit: a copy's speed",
        *by_case(RESULTS, rows),
    ]


def comparison_lines(found: Comparison) -> list[str]:
    """A line for each case, and below it a row for each implementation with both jobs' times."""
    rows = []
    for row in found.rows:
        cells = (
            microseconds(row.a_us),
            microseconds(row.b_us),
            ratio(row.ratio),
            interval(ratio, row.ratio_low, row.ratio_high),
            "unknown" if row.margin is None else f"{row.margin:.1%}",
            row.verdict or "none",
        )
        rows.append((row.case, label_of(row.implementation, verified=row.verified), cells))
    whys = [
        f"no verdict on {row.implementation}, {row.case}: {row.why}"
        for row in found.rows
        if row.why
    ]
    head = [
        "times in us; ratio: of b to a, each relative to its job's copy, above 1 takes longer",
        "margin: two jobs of the same code may differ by so much; other jobs show it",
    ]
    hint = (
        "no margin is known for some rows: repeat a job with --fresh, so that the server learns it"
    )
    unknown = any(row.margin is None for row in found.rows)
    return [*head, *by_case(COMPARED, rows), *whys, *([hint] if unknown else [])]


def compared_lines(found: Comparison) -> list[str]:
    """The rows of a comparison, what only one of the jobs measured, and how their machines differ."""
    lines = comparison_lines(found) if found.rows else ["they have measured nothing in common"]
    lines += [f"only in a: {key}" for key in found.only_a]
    lines += [f"only in b: {key}" for key in found.only_b]
    lines += [
        f"{name} differs: {one_line(str(theirs))} and {one_line(str(ours))}"
        for name, (theirs, ours) in found.differences.items()
    ]
    return lines


def board_lines(found: Board) -> list[str]:
    """A line for each case, and below it a row for each implementation, the fastest first.

    Results without a rank follow after the others of their case.
    """
    rows = []
    hidden = [entry for standing in found.standings for entry in standing.unranked]
    for standing in found.standings:
        for entry in (*standing.entries, *standing.unranked):
            cells = (
                "-" if entry.rank is None else str(entry.rank),
                microseconds(entry.median_us),
                ratio(entry.relative),
                interval(ratio, entry.relative_low, entry.relative_high),
                f"{1 / entry.relative:.0%}",
            )
            label = label_of(entry.implementation, verified=entry.verified)
            rows.append((standing.case, label, cells))
    return [
        f"{found.op} on {found.device}; times in us; of copy: over the time of a copy of as many bytes",
        "implementations share a rank if their intervals overlap or differ by less than 1 %",
        *([ALL_RANKED] if any(NOT_VERIFIED in one.tags for one in hidden) else []),
        *by_case(BOARD, rows),
        *(scores.sentence(one) for one in found.scores if one.cases > 1),
        *(
            f"no rank for {entry.implementation}, {standing.case}: {', '.join(entry.tags)}"
            for standing in found.standings
            for entry in standing.unranked
        ),
    ]


def by_case(names: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Aligned rows of at most 80 characters, if the cells leave room for a label.

    A case has a line of its own, not a column. So has a label that is too long to stand beside its
    cells, such as "ann/my_permute@3f2a91c0".
    """
    whole = [cells for *_, cells in rows if len(cells) == len(names)]
    widths = [max(map(len, column)) for column in zip(names, *whole, strict=True)]
    room = max(SHORTEST_LABEL, LINE_WIDTH - len(INDENT) - sum(widths) - len(widths))
    label_width = max((len(label) for _, label, _ in rows if len(label) <= room), default=0)

    def line(label: str, cells: Sequence[str]) -> str:
        aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
        return " ".join((f"{INDENT}{label:{label_width}}", *aligned)).rstrip()

    lines, before = [line("", names)], None
    for case, label, cells in rows:
        if case != before:
            lines.append(case)
        before = case
        if len(label) > label_width:
            lines += [f"{INDENT}{label}", line("", cells)]
        else:
            lines.append(line(label, cells))
    return lines


def undecided_lines(results: Results, precision: str) -> list[str]:
    """Why verdicts are undecided, and what would help."""
    margins = {case.position: case.margin for case in results.cases}
    found = [
        f"{row.implementation}, {row.case}: undecided: "
        + why_undecided(row.ratio_low, row.ratio_high, margins.get(row.position, 0.0), precision)
        for row in results.measurements
        if row.verdict == UNDECIDED and row.ratio_low and row.ratio_high
    ]
    lines, more = found[:MOST_UNDECIDED], len(found) - MOST_UNDECIDED
    return [*lines, *([f"undecided in {more} more rows"] if more > 0 else [])]


def converged(results: Results) -> str:
    """How many cases converged: their intervals are as narrow as their precision asks for."""
    cases = results.cases
    return (
        f"{sum(bool(case.converged) for case in cases)} of {plural(len(cases), 'case')} converged"
    )


def remarks(results: Results) -> list[str]:
    """What a reader needs to judge the table: remarks, errors with their tracebacks, and tags."""
    lines = list(results.remarks)
    shown = set()
    for row in results.measurements:
        if row.error:
            lines.append(f"{row.implementation}, {row.case}: {one_line(row.error)}")
        if row.traceback and (row.implementation, row.traceback) not in shown:
            shown.add((row.implementation, row.traceback))
            lines += [f"{INDENT}{line}" for line in text_lines(row.traceback[:MAX_TRACEBACK])]
    tagged = {tag for case in results.cases for tag in case.tags}
    if tagged:
        lines.append(f"tags: {', '.join(sorted(tagged))}")
    for name in dict.fromkeys(row.implementation for row in results.measurements):
        tags = {
            tag for row in results.measurements if row.implementation == name for tag in row.tags
        }
        if tags:
            lines.append(f"tags of {name}: {', '.join(sorted(tags))}")
    return lines


def jobs_table(jobs: Iterable[JobInfo], *, short: bool) -> Table:
    """A table of jobs; with `short` only of columns for which a terminal has room."""
    if short:
        listed = list(jobs)
        users = len({job.user for job in listed}) > 1
        found = [
            (
                *(job.id, measured(job), outcome(job)),
                *((job.user,) if users else ()),
                ago(job.created_at),
            )
            for job in listed
        ]
        return table_of(("id", "job", "outcome", *(("user",) if users else ()), "age"), found)
    columns = (
        *("id", "user", "op", "state", "cases", "precision", "submitted", "tags"),
        *("first case", "implementations", "name", "outcome", "where", "gpu", "group"),
    )
    rows = [
        (
            job.id,
            job.user,
            job.op,
            waiting(job),
            f"{job.cases_done}/{job.cases_total}",
            job.precision,
            f"{ago(job.created_at)} ago",
            " ".join(job.tags),
            job.first_case,
            ",".join(job.implementations),
            job.name,
            outcome(job),
            where(job),
            job.gpu,
            job.group,
        )
        for job in jobs
    ]
    return table_of(columns, rows)


def where(job: JobInfo) -> str:
    """On which host and device a job was measured, such as "gpu-box NVIDIA H200"; the name of its lane
    if an older server does not say this."""
    return " ".join(filter(None, (job.host, job.device_name))) or job.device or ""


def measured(job: JobInfo) -> str:
    """What a job measures: its title and tags, and until its outcome says more its implementations."""
    tags = f" [{' '.join(job.tags)}]" if job.tags else ""
    timed = ", ".join(job.implementations)  # a scratch run has none
    names = "" if chip_of(job) or not timed else f": {timed}"
    return f"{_on(job)}{job.title}{names}{tags}"


def _on(job: JobInfo | QueueEntry) -> str:
    """The model that a job asks for, and its group, such as "H100 of g3f2a91c0b7d4: "."""
    return f"{job.gpu} of {job.group}: " if job.group else f"{job.gpu}: " if job.gpu else ""


def outcome(job: JobInfo) -> str:
    """What a job says of the implementation that it is about, or else its state."""
    chip = chip_of(job)
    return waiting(job) if chip is None else chip.text


def history_table(found: History) -> Table:
    """A table of one case over time. The last column names what changed since the row below. A time
    that is no basis for a verdict is marked, such as "12.34 suspect"."""
    columns = ("measured", "job", "user", "us", "95 % CI", "limit", "what changed")
    rows = []
    for point in found.points:
        row = point.measurement
        share = row.share_of_limit
        status = status_shown(row.status, row.median_us)
        why = why_no_verdict(row.status, row.tags)
        verified = "verified" if row.verified else ""
        cells = (
            f"{ago(point.finished_at)} ago",
            point.job,
            point.user,
            status or " ".join(filter(None, (microseconds(row.median_us), why, verified))),
            "" if status else interval(microseconds, row.ci_low_us, row.ci_high_us),
            "" if status or share is None else f"{share:.0%}",
            ", ".join(point.changed),
        )
        rows.append(cells)
    return table_of(columns, rows)


def queue_table(queue: Queue) -> Table:
    """A table of all users' jobs that run or wait, for a terminal of 80 columns."""
    rows = []
    for entry in queue.entries:
        state = entry.state if entry.priority == "normal" else f"{entry.state}, {entry.priority}"
        when = (
            lacking(entry)
            if not entry.has_device
            else f"in {span(entry.starts_in_s)}"
            if entry.position
            else f"{span(entry.ends_in_s)} left"
        )
        cells = (
            entry.position or ">",
            entry.id,
            entry.user,
            f"{_on(entry)}{entry.title}",
            f"{state} on {entry.device}" if entry.device else state,
            f"{entry.cases_done}/{entry.cases_total}",
            when,
        )
        rows.append(cells)
    return table_of(("", "id", "user", "title", "state", "cases", "when"), rows)


def nodes_table(nodes: Iterable[Node], queue: Queue) -> Table:
    """A table of the servers that share a database, for a terminal of 80 columns."""
    running = Counter(entry.node for entry in queue.entries if entry.position == 0)
    rows = [
        (
            node.host,
            node.id,
            node_state(node),
            ", ".join(lane.model or lane.name for lane in node.lanes),
            f"{sum(lane.state == 'ready' for lane in node.lanes)}/{len(node.lanes)}",
            running[node.id],
        )
        for node in nodes
    ]
    return table_of(("server", "id", "state", "devices", "ready", "jobs"), rows)


def node_state(node: Node) -> str:
    """The state of a server, and since when it is gone."""
    return node.state if node.gone_since is None else f"{node.state} {ago(node.gone_since)} ago"


def lanes_table(health: Health) -> Table:
    """A table of the server's devices, of a server that says nothing of their load."""
    rows = [(lane.name, lane.state, lane.device or "no device yet") for lane in health.lanes]
    return table_of(("lane", "state", "device"), rows)


def loads_table(devices: Iterable[Device]) -> Table:
    """A table of what devices do now, for a terminal of 80 columns."""
    rows = []
    devices = [*devices]
    hosts = _hosts(devices)
    for device in devices:
        last = _last_reading(device)
        rows.append(
            (
                hosts[device.node] + device.name,
                device.label.removeprefix(f"{device.name} (").removesuffix(")") or "not ready yet",
                device.state,
                "" if last is None or last.load is None else f"{last.load:.0%}",
                "" if last is None else _used(last),
                "" if last is None or last.power_w is None else f"{last.power_w:.0f}",
                device.queued + device.in_flight,
            )
        )
    return table_of(("device", "what it is", "state", "load", "memory", "W", "calls"), rows)


def _last_reading(device: Device) -> DeviceReading | None:
    return next((step.reading for step in reversed(device.steps) if step.reading), None)


def _used(reading: DeviceReading) -> str:
    if reading.memory_bytes is None or reading.memory_total_bytes is None:
        return ""
    used, whole = human_bytes(reading.memory_bytes), human_bytes(reading.memory_total_bytes)
    return f"{used} of {whole}"


def _hosts(devices: Iterable[Device]) -> dict[str, str]:
    """By server, what stands before the names of its devices: its host if there are several servers.

    Servers on one host also have the beginning of their ids.
    """
    known = {device.node: device.host for device in devices}
    if len(known) == 1:
        return dict.fromkeys(known, "")
    seen = [*known.values()]
    return {
        node: f"{host} " if seen.count(host) == 1 else f"{host} {node[:4]} "
        for node, host in known.items()
    }


def devices_table(devices: Iterable[Device]) -> Table:
    """A table of devices: the last reading of each, and sums over the last hour.

    A column in which no device has a value is left out.
    """
    columns = ("device", "state", "load", "memory", "MHz", "W", "°C", "calls", "blocks", "remarks")
    rows = []
    devices = [*devices]
    hosts = _hosts(devices)
    for device in devices:
        last = _last_reading(device)
        cells: tuple[str, ...] = ("",) * 5
        if last is not None:
            cells = (
                "" if last.load is None else f"{last.load:.0%}",
                _memory(last),
                *(
                    "" if value is None else f"{value:.0f}"
                    for value in (last.sm_clock_mhz, last.power_w, last.temperature_c)
                ),
            )
        rows.append(
            (
                hosts[device.node] + (device.label or device.name),
                device.state,
                *cells,
                sum(step.calls for step in device.steps),
                span(sum(step.blocks_s for step in device.steps)),
                ", ".join(_remarks(last)),
            )
        )
    kept = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    return table_of([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _memory(reading: DeviceReading) -> str:
    if reading.memory_bytes is None or reading.memory_total_bytes is None:
        return ""
    return f"{reading.memory_bytes / 1e9:.1f}/{reading.memory_total_bytes / 1e9:.0f} GB"


def _remarks(reading: DeviceReading | None) -> list[str]:
    if reading is None:
        return []
    found = [reading.throttled] if reading.throttled else []
    found += ["power capped"] if reading.power_capped else []
    if reading.other_processes:
        found.append(f"{reading.other_processes} other processes")
    return found


def microseconds(us: float | None) -> str:
    """A time with four significant digits, or as a whole number from 1,000 on."""
    return "" if us is None else f"{us:.4g}" if us < 1e3 else f"{us:,.0f}"


def ratio(value: float | None) -> str:
    """A ratio with three decimals, or as a time from 100 on."""
    return "" if value is None else f"{value:.3f}" if value < 100 else microseconds(value)


def interval(form: Callable[[float], str], low: float | None, high: float | None) -> str:
    """An interval as low-high; empty if one end is not known."""
    return "" if low is None or high is None else f"{form(low)}-{form(high)}"


def ago(moment: str) -> str:
    """The time since a moment in ISO format."""
    past = datetime.now(UTC) - datetime.fromisoformat(moment)
    return span(max(0.0, past.total_seconds()))


def one_line(text: str) -> str:
    """The first 200 characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."


def text_lines(text: str) -> list[str]:
    """The lines of a text, with their indentation in spaces."""
    return text.expandtabs(TAB_WIDTH).splitlines()
