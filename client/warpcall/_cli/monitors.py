"""The commands `warpcall monitors add`, `list`, `show`, `pause`, `resume` and `remove`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.bench import (
    Dtypes,
    OpArguments,
    Shapes,
    Sizes,
    options_named,
)
from warpcall._cli.declarations import declaration_of
from warpcall._cli.job_options import job_options
from warpcall._cli.op_args import one_of
from warpcall._cli.output import (
    Json,
    OpName,
    Url,
    console,
    plural,
    print_json,
    table_of,
    write_lines,
)
from warpcall._cli.sharing import seconds_of
from warpcall._cli.sweep_args import implementations_of, sweep_of
from warpcall._cli.tables import ago, by_case, microseconds, one_line, ratio
from warpcall._jobs.progress import span
from warpcall.jobs import TIMED_PRECISIONS
from warpcall.jobs.request import JobRequest
from warpcall.monitors import LEAST, Monitor, MonitorDetails

MonitorId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of a monitor, from `warpcall monitors list`, or how it begins."
    ),
]
SERIES = ("model", "runs", "first", "latest")
STEPS = ("before", "after", "ratio", "found", "also changed")

app = typer.Typer(
    help="Measurements that the server repeats.",
    no_args_is_help=True,
)


@app.command(context_settings={"ignore_unknown_options": True})
@job_options(without=("precision", "priority", "tags", "fresh", "profile", "sanitize"))
def add(
    op: OpName,
    arguments: OpArguments = None,
    every: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time between two runs: 30m, 6h or 7d. The server limits it."
        ),
    ] = "6h",
    least: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", help="Smallest step to report, in percent of the time before it."
        ),
    ] = 100 * LEAST,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL that the server calls for steps, and when runs begin to fail or work again, "
            "signed with a secret that is shown once. The operator of the server lists the hosts "
            "that it may call.",
        ),
    ] = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    vs: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What to measure besides warpcall (of a problem: torch), as for `warpcall bench`. "
            "Default: torch.",
        ),
    ] = None,
    size: Sizes = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Seconds for an implementation of a case: quick (2), standard (10), publish (60)."
        ),
    ] = "standard",
    tag: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Tag of the jobs. Can be repeated.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Repeat a measurement, and find steps in its times.

    The jobs of a monitor run after all others, and give the device up when another job needs it.

    \b
    warpcall monitors add permute --shape 4096x4096 --dtype bf16 --dims 1,0 --every 6h
    """
    chosen = JobRequest(
        op,
        implementations=implementations_of(op, vs, []),
        precision=one_of("--precision", precision, TIMED_PRECISIONS),
        tags=tag,
        **options,
    )
    every_s = round(seconds_of("--every", every))
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        sweep = sweep_of(declaration, arguments or [], shape, dtype, size or [])
        own = {"every_s": "--every", "least": "--least", "notify": "--notify"}
        with options_named(op, declaration, own):
            added = gpu.monitors.add(
                chosen, every_s=every_s, least=least / 100, notify=notify, sweep=sweep
            )
    if as_json:
        print_json(asdict(added))
    else:
        write_lines(f"{added.id} measures every {span(added.every_s)}, for the first time now")
        if added.secret is not None:
            write_lines(f"secret of its calls, shown only now: {added.secret}")


@app.command("list")
def list_(
    user: Annotated[
        str | None, typer.Option(help="This user's monitors instead of yours; all for all users'.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List your monitors, the latest first."""
    with Client(url) as gpu:
        found = gpu.monitors.list(user=user)
    if as_json:
        print_json([asdict(one) for one in found])
    elif found:
        columns = ("id", "user", "title", "every", "state", "runs", "steps")
        console().print(table_of(columns, [_row(one) for one in found]))
    else:
        write_lines("no monitors")


@app.command()
def show(id: MonitorId, as_json: Json = False, url: Url = None) -> None:
    """Show a monitor: its times, and the steps in them."""
    with Client(url) as gpu:
        found = gpu.monitors.show(id)
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_lines(found))


@app.command()
def pause(id: MonitorId, as_json: Json = False, url: Url = None) -> None:
    """Let a monitor submit no more jobs until you resume it."""
    with Client(url) as gpu:
        found = gpu.monitors.pause(id)
    print_json(asdict(found)) if as_json else write_lines(f"{found.id} is {found.state}")


@app.command()
def resume(id: MonitorId, as_json: Json = False, url: Url = None) -> None:
    """Let a paused monitor go on. It measures at once."""
    with Client(url) as gpu:
        found = gpu.monitors.resume(id)
    print_json(asdict(found)) if as_json else write_lines(f"{found.id} is {found.state}")


@app.command()
def remove(id: MonitorId, as_json: Json = False, url: Url = None) -> None:
    """Remove a monitor. What it has measured is kept as jobs."""
    with Client(url) as gpu:
        gpu.monitors.remove(id)
    print_json({"removed": id}) if as_json else write_lines(f"{id} is removed")


def _row(one: Monitor) -> tuple[object, ...]:
    return (one.id, one.user, one.title, span(one.every_s), one.state, one.runs, one.steps)


def _lines(found: MonitorDetails) -> Iterator[str]:
    readers = "private" if found.private else "readable by all users"
    yield f"{found.id}: {found.op} every {span(found.every_s)}, {found.state}, {readers}"
    yield f"{plural(found.runs, 'run')}, {plural(found.steps, 'step')} of at least {found.least:.1%}"
    if found.failing_since:
        yield f"has failed for {ago(found.failing_since)}: {one_line(found.detail)}"
    if found.notify:
        yield f"calls {found.notify}"
    if found.series:
        rows = []
        for one in found.series:
            first, latest = one.points[0].median_us, one.points[-1].median_us
            times = (microseconds(first), microseconds(latest))
            cells = (one.model or "no name", str(len(one.points)), *times)
            rows.append((one.case, one.implementation, cells))
        yield "times in us"
        yield from by_case(SERIES, rows)
    if found.found:
        steps = []
        for step in found.found:
            times = (microseconds(step.before_us), microseconds(step.after_us))
            when = f"{ago(step.found_at)} ago"
            changed = ", ".join(step.changed) or "nothing"
            shown = (*times, ratio(step.ratio), when, changed)
            steps.append((step.case, step.implementation, shown))
        yield "steps, the latest first"
        yield from by_case(STEPS, steps)
    if found.deliveries:
        yield "calls, the latest first"
        for call in found.deliveries:
            why = f": {one_line(call.detail)}" if call.detail else ""
            tried = plural(call.attempts, "attempt")
            yield f"  {call.id} {call.event}: {call.state}, {tried}{why}"
