"""The commands `bench`, `jobs`, `watch`, `cancel`, `compare`, `history` and `top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from warpcall import Client, JobFailed
from warpcall._cli.files import UsageError
from warpcall._cli.main import INTERRUPTED
from warpcall._cli.output import Json, OpName, Url, console, print_json, write_lines
from warpcall._cli.sweep_args import OURS, implementations_of, sweep_of
from warpcall._cli.tables import (
    ago,
    comparison_lines,
    converged,
    history_table,
    jobs_table,
    lanes_table,
    one_line,
    queue_table,
    remarks,
    results_lines,
)
from warpcall._jobs.job import Job
from warpcall._jobs.progress import span, waiting
from warpcall.errors import InvalidInput
from warpcall.jobs import PRECISIONS, PRIORITIES, STATES, JobPreview, JobRequest, SubmittedJob
from warpcall.jobs.results import Results

OPTIONS = {  # the option for each field that an error of the server can name
    "implementations": "--vs",
    "tags": "--tag",
    "note": "--note",
    "sweep": "--shape, --dtype",
}
MAX_LISTED = 500
LOOK_S = 1.0  # between two requests of `top`

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of a job, from `warpcall jobs`.")]

T = TypeVar("T")

app = typer.Typer()


def _number(given: str | int) -> int:
    text = str(given)  # typer passes the default as an int
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LISTED):
        raise UsageError(f"--limit must be 1 to {MAX_LISTED}, got {text!r}")
    return int(text)


Limit = Annotated[int, typer.Option(metavar="N", parser=_number, help="Rows, 1 to 500.")]


@app.command(context_settings={"ignore_unknown_options": True})
def bench(
    op: OpName,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTIONS OF THE OP]",
            help="Parameters such as --dims 1,0. Repeat one with another value for more cases.",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="SHAPES", help="Shapes of the first input: 4096x4096,8192x8192."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPES", help="Dtypes of the first input: bf16,fp32.")
    ] = None,
    vs: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Implementations to time beside ours: torch, torch.compile, copy (a plain copy of "
            "the same bytes) and others that the server has.",
        ),
    ] = "torch",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N,N", help="Sizes that no shape determines: taps=3,7."),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Seconds for an implementation of a case: quick (2), standard (10), publish (60)."
        ),
    ] = "standard",
    priority: Annotated[
        str, typer.Option(help="In the queue: high (administrators), normal or low.")
    ] = "normal",
    tag: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Tag of the job. Can be repeated.")
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Note for readers.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what you have measured before.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the results.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Submit nothing: show the job's cases, time and memory."),
    ] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Time an op against other implementations.

    --shape and --dtype are required. The job waits in the queue of the server's devices. Times come
    with confidence intervals and verdicts.

    \b
    warpcall bench permute --shape 4096x4096,8192x8192 --dtype bf16,fp32 --dims 1,0 --vs torch,copy
    """
    wanted: JobRequest = {
        "precision": _one_of("--precision", precision, PRECISIONS),
        "priority": _one_of("--priority", priority, PRIORITIES),
    }
    names = implementations_of(vs)
    with Client(url) as gpu:
        declaration = gpu.kernel(op)
        sweep = sweep_of(declaration, arguments or [], shape, dtype, size or [])
        request: JobRequest = {
            "implementations": names, "sweep": sweep, "tags": tag, "note": note, "fresh": fresh,
            **wanted,
        }  # fmt: skip
        with _options_named([p["name"] for p in declaration["params"]]):
            if dry_run:
                _print_preview(gpu.jobs.preview(op, **request), as_json=as_json)
                return
            job = gpu.jobs.submit(op, **request)
        if detach:
            _print_detached(job, as_json=as_json)
        else:
            _wait_and_print(job, as_json=as_json)


@app.command()
def jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    op: Annotated[str | None, typer.Option(help="Only jobs of this op.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Only this user's jobs (administrators).")
    ] = None,
    limit: Limit = 20,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the last job of the previous page.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List your benchmark jobs, the latest first. Administrators see all users' jobs."""
    known = None if state is None else _one_of("--state", state, STATES)
    with Client(url) as gpu:
        found = gpu.jobs.list(state=known, op=op, tag=tag, user=user, before=before, limit=limit)
    if as_json:
        print_json([asdict(job.info) for job in found])
    elif found:
        console().print(jobs_table(found))
    else:
        write_lines("no jobs")


@app.command()
def watch(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Wait for a job and show its results. Ctrl-C leaves the job running."""
    with Client(url) as gpu:
        _wait_and_print(gpu.jobs.get(id), as_json=as_json)


@app.command()
def cancel(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Cancel a job that waits or runs. The cases that it has measured are kept."""
    with Client(url) as gpu:
        before = gpu.jobs.get(id)
        was_over = before.ended
        job = before.cancel()
    if as_json:
        print_json(asdict(job.info))
    elif was_over:
        write_lines(f"{id} had ended before: {job.state}")
    else:
        kept = f"{job.cases_done} of {job.cases_total} cases are measured"
        write_lines(f"{id} is {'cancelled' if job.ended else 'being cancelled'}; {kept}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Id of a job.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Id of the job to compare with A.")],
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Compare the results of two jobs, case by case."""
    with Client(url) as gpu:
        found = gpu.jobs.compare(a, b)
    if as_json:
        print_json(asdict(found))
        return
    lines = comparison_lines(found) if found.rows else ["they have measured nothing in common"]
    lines += [f"only in a: {key}" for key in found.only_a]
    lines += [f"only in b: {key}" for key in found.only_b]
    lines += [
        f"{name} differs: {one_line(str(theirs))} and {one_line(str(ours))}"
        for name, (theirs, ours) in found.differences.items()
    ]
    write_lines(*lines)


@app.command()
def history(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE", help='A case as results name it, such as "isin x=I64[100] ...".'
        ),
    ],
    implementation: Annotated[
        str, typer.Option(metavar="NAME", help="Implementation to show, such as torch.")
    ] = OURS,
    limit: Limit = 20,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show the times of one case in all jobs, the latest first."""
    with Client(url) as gpu:
        found = gpu.jobs.history(case, implementation=implementation, limit=limit)
    if as_json:
        print_json(asdict(found))
    elif found.points:
        console().print(history_table(found))
    else:
        write_lines(f"no job of yours has measured {implementation} in that case")


@app.command()
def top(as_json: Json = False, url: Url = None) -> None:
    """Show the queue and the devices. On a terminal the display is live; Ctrl-C ends it."""
    with Client(url) as gpu:
        if as_json:
            print_json({"lanes": gpu.health().get("lanes", []), "queue": asdict(gpu.jobs.queue())})
        elif not sys.stdout.isatty():
            console().print(_overview(gpu))
        else:
            _show_live(gpu)


def _show_live(gpu: Client) -> None:
    try:
        with Live(_overview(gpu), console=console(), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(LOOK_S)
                live.update(_overview(gpu), refresh=True)
    except KeyboardInterrupt:
        return


def _overview(gpu: Client) -> Group:
    queue = gpu.jobs.queue()
    waits = sum(entry.position > 0 for entry in queue.entries)
    runs = len(queue.entries) - waits
    counts = f"\n{runs} running, {waits} waiting, on {queue.devices} for jobs"
    return Group(lanes_table(gpu.health()), Text(counts), queue_table(queue))


def _print_preview(preview: JobPreview, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(preview))
        return
    text = f"{preview.cases} cases, some {span(preview.estimated_s)}"
    text += f", at most {preview.device_bytes / 1e6:,.3g} MB on the device"
    if preview.reuses:
        text += f"; {preview.reuses} has measured this already"
    write_lines(text)


def _print_detached(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(job.info))
        return
    if job.ended:
        text = f"{job.id} has measured this already; --fresh measures again"
    else:
        text = f"{job.id} {waiting(job)}, takes some {span(job.estimated_s)}"
    write_lines(text, f"warpcall watch {job.id}")


def _wait_and_print(job: Job, *, as_json: bool) -> None:
    """Wait for a job and print its results. If it failed, print what it has measured, and raise."""
    failure: JobFailed | None = None
    measured_before = isinstance(job.info, SubmittedJob) and job.info.reused and job.ended
    try:
        results = job.wait()
    except JobFailed as error:
        failure, results = error, job.results()
    except KeyboardInterrupt:
        sys.stderr.write(
            f"warpcall: {job.id} goes on: `warpcall watch {job.id}` comes back to it, "
            f"`warpcall cancel {job.id}` ends it\n"
        )
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(asdict(results))
    else:
        _print_results(job, results, " (--fresh measures anew)" if measured_before else "")
    if failure is not None:
        raise failure


def _print_results(job: Job, results: Results, hint: str) -> None:
    lines = []
    if results.measurements:
        lines += results_lines(results, job.implementations[0])
    device = f" on {job.device}" if job.device else ""
    when = f"{ago(job.finished_at)} ago{hint}" if job.finished_at else "just now"
    took = span(job.took_s)
    lines.append(f"{job.id} {job.state}{device} in {took}, {when}, {converged(results)}")
    lines += remarks(results)
    write_lines(*lines)


@contextmanager
def _options_named(params: Collection[str]) -> Iterator[None]:
    """Raise errors of the server as usage errors that name the option at fault, not the field."""
    try:
        yield
    except InvalidInput as error:
        field, _, rest = (error.field or "").partition(".")
        if rest in params:
            known: str | None = f"--{rest.replace('_', '-')}"
        elif "sizes" in (error.field or "").split("."):
            known = "--size"
        else:
            known = OPTIONS.get(field)
        if known is None:
            raise
        raise UsageError(f"{known}: {error.detail.removeprefix(f'{field}: ')}") from None


def _one_of(option: str, given: str, allowed: Sequence[T]) -> T:
    for one in allowed:
        if one == given:
            return one
    raise UsageError(f"{option} must be one of {', '.join(map(str, allowed))}, got {given!r}")
