"""The commands `jobs`, `watch`, `cancel`, `artefacts`, `printed`, `board`, `devices` and `top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from warpcall import Client, Forbidden, InvalidInput, Job, NotFound, WarpcallError
from warpcall._cli.files import UsageError
from warpcall._cli.groups import wait_and_print_group
from warpcall._cli.job_output import wait_and_print
from warpcall._cli.op_args import one_of
from warpcall._cli.output import (
    Json,
    OpName,
    Url,
    console,
    human_bytes,
    job_ids,
    plural,
    print_json,
    table_of,
    write_lines,
)
from warpcall._cli.scratch import watch_scratch
from warpcall._cli.tables import (
    board_lines,
    devices_table,
    jobs_table,
    lanes_table,
    loads_table,
    nodes_table,
    one_line,
    queue_table,
)
from warpcall._cli.upload_prints import text_lines
from warpcall._jobs.artefacts import JobArtefact
from warpcall._jobs.groups import is_group
from warpcall.jobs import STATES, UNFINISHED
from warpcall.nodes import Node

MAX_LISTED = 500
LOOK_S = 1.0  # between two requests of `top`

JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=job_ids,
        help="Id of a job, from `warpcall jobs`, or how it begins. Ids of groups begin with g.",
    ),
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        autocompletion=job_ids,
        help="Ids of jobs, from `warpcall jobs`, or how they begin.",
    ),
]

app = typer.Typer()


def _number(given: str | int) -> int:
    text = str(given)  # typer passes the default as an int
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LISTED):
        raise UsageError(f"--limit must be 1 to {MAX_LISTED}, got {text!r}")
    return int(text)


Limit = Annotated[int, typer.Option(metavar="N", parser=_number, help="Rows, 1 to 500.")]


@app.command()
def jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    op: Annotated[str | None, typer.Option(help="Only jobs of this op.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag.")] = None,
    user: Annotated[
        str | None, typer.Option(help="This user's jobs instead of yours; all for all users'.")
    ] = None,
    limit: Limit = 20,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the last job of the previous page.")
    ] = None,
    scratch: Annotated[
        bool, typer.Option("--scratch", help="List scratch runs instead of benchmarks.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List your benchmark jobs, the latest first.

    Jobs of others that you may read are listed with --user.
    """
    known = None if state is None else one_of("--state", state, STATES)
    with Client(url) as gpu:
        found = gpu.jobs.list(
            state=known,
            op=op,
            tag=tag,
            user=user,
            before=before,
            limit=limit,
            kind="scratch" if scratch else None,
        )
    if as_json:
        print_json([asdict(job.info) for job in found])
    elif found:
        console().print(jobs_table(found, short=sys.stdout.isatty()))
    else:
        write_lines("no jobs")


@app.command()
def watch(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Wait for a job and show its results. Ctrl-C leaves the job running.

    With the id of a group it waits for all its jobs, and shows one table.

    Of a scratch run it shows what its command writes, and has the exit code of `warpcall exec`.
    """
    with Client(url) as gpu:
        if is_group(id):
            wait_and_print_group(gpu.jobs.group(id), as_json=as_json)
            return
        job = gpu.jobs.get(id)
        if job.kind == "scratch":
            raise typer.Exit(watch_scratch(job))
        wait_and_print(job, as_json=as_json)


@app.command()
def cancel(
    ids: JobIds = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Cancel your unfinished jobs with this tag.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Cancel all your unfinished jobs.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Cancel a job that waits or runs. The cases that it has measured are kept.

    The id of a group stands for all its jobs.
    """
    if bool(ids) + (tag is not None) + every != 1:
        raise UsageError("cancel takes either ids of jobs, or --tag TAG, or --all")
    failures: list[str] = []
    done: list[tuple[Job, bool]] = []
    with Client(url) as gpu:
        ids = None if ids is None else [job for one in ids for job in _jobs_of(gpu, one)]
        if ids and len(ids) == 1:
            done.append(_cancelled(gpu.jobs.get(ids[0])))
        elif ids:
            for id_ in dict.fromkeys(ids):
                try:
                    done.append(_cancelled(gpu.jobs.get(id_)))
                except (Forbidden, InvalidInput, NotFound) as error:  # the others are cancelled
                    failures.append(error.detail)
        else:
            done += [_cancelled(job) for job in _unfinished(gpu, tag)]
    if as_json:
        found = [asdict(job.info) for job, _ in done]
        print_json(found[0] if ids and len(ids) == 1 else found)
    else:
        write_lines(*(_cancel_line(job, was_over) for job, was_over in done))
        if not ids and not done:
            write_lines(
                "you have no unfinished jobs" + (f" with the tag {tag}" if tag is not None else "")
            )
        elif not ids or len(ids) > 1:
            count = sum(not was_over for _, was_over in done)
            write_lines(f"{plural(count, 'job')} cancelled")
    if failures:
        raise WarpcallError("; ".join(failures))


def _jobs_of(gpu: Client, id_: str) -> list[str]:
    """The id itself, or those of the jobs of the group that it names."""
    if not is_group(id_):
        return [id_]
    return [part.job.id for part in gpu.jobs.group(id_).parts if part.job is not None]


def _cancelled(job: Job) -> tuple[Job, bool]:
    """Cancel a job. Return it, and whether it had ended before."""
    was_over = job.ended
    job.cancel()
    return job, was_over or (job.ended and job.state != "cancelled")


def _cancel_line(job: Job, was_over: bool) -> str:
    if was_over:
        return f"{job.id} had ended before: {job.state}"
    kept = f"{job.cases_done} of {plural(job.cases_total, 'case')} measured"
    return f"{job.id} is {'cancelled' if job.ended else 'being cancelled'}; {kept}"


def _unfinished(gpu: Client, tag: str | None) -> list[Job]:
    """The user's own jobs that wait or run."""
    found: dict[str, Job] = {}
    # In the order of the states: a job that goes on meanwhile is listed at its next state.
    for state in UNFINISHED:
        before = None
        while page := gpu.jobs.list(state=state, tag=tag, before=before, limit=MAX_LISTED):
            found |= {job.id: job for job in page}
            before = page[-1].id
            if len(page) < MAX_LISTED:
                break
    return list(found.values())


@app.command()
def artefacts(
    id: JobId,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of an artefact. Default: list all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the artefact here.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the artefact.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the artefacts of a job, or download one.

    An artefact is a file that belongs to the job, such as a profile.

    \b
    warpcall artefacts ID
    warpcall artefacts ID NAME -o FILE
    """
    if name is None and (out is not None or delete):
        raise UsageError("--out and --delete are for one artefact: give its NAME")
    if name is not None and (out is not None) is delete:
        raise UsageError("give either --out FILE or --delete with the name of an artefact")
    with Client(url) as gpu:
        found = gpu.jobs.get(id).artefacts()
        if name is None:
            _print_artefacts(found, as_json)
            return
        one = next((one for one in found if one.name == name), None)
        if one is None:
            names = ", ".join(one.name for one in found) or "none"
            raise NotFound(
                f"the job {id} has no artefact {name!r:.140}; it has {names}", field="name"
            )
        if out is not None:
            one.download(out)
        else:
            one.delete()
    if as_json:
        print_json(asdict(one.info))
    elif out is not None:
        write_lines(f"{out}: {human_bytes(one.nbytes)}")
    else:
        write_lines(f"{name} is deleted")


def _print_artefacts(found: Sequence[JobArtefact], as_json: bool) -> None:
    if as_json:
        print_json([asdict(one.info) for one in found])
        return
    rows = [(one.name, human_bytes(one.nbytes), one.expires_at[:10]) for one in found if one.sha256]
    if rows:
        console().print(table_of(("artefact", "size", "kept until"), rows))
    write_lines(*(f"{one.name}: {one_line(one.error)}" for one in found if one.error))
    if not found:
        write_lines("no artefacts")


@app.command()
def printed(
    id: JobId,
    implementation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what this implementation printed.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show what uploads printed in a job.

    It is their standard output and standard error, case by case, until the first call of the case
    had returned. Control characters are replaced.
    """
    with Client(url) as gpu:
        found = gpu.jobs.get(id).printed()
    if implementation is not None:
        found = [one for one in found if one.implementation == implementation]
    if as_json:
        print_json([asdict(one) for one in found])
    elif found:
        for one in found:
            write_lines(*text_lines(one), wrap=False)
    else:
        write_lines("nothing was printed")


@app.command()
def board(
    op: OpName,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device. Default: the one that measured the op last."),
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="CASE", help="Only this case, as results name it.")
    ] = None,
    ranks_all: Annotated[
        bool, typer.Option("--all", help="Rank uploads that are not verified, too.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show the best result of each implementation in each case.

    Only valid results of the op count. Of uploads only verified kernels are ranked.
    """
    with Client(url) as gpu:
        found = gpu.jobs.board(op, device=device, case=case, ranks_all=ranks_all)
    if as_json:
        print_json(asdict(found))
    elif found.standings:
        write_lines(*board_lines(found))
    else:
        where = f" on {found.device}" if found.device else ""
        write_lines(f"no job that you may read has a valid result of {op}{where}")


@app.command()
def devices(as_json: Json = False, url: Url = None) -> None:
    """Show the server's devices and their use in the last hour.

    Load, memory and clock are those of now.
    """
    with Client(url) as gpu:
        found = gpu.devices()
    if as_json:
        print_json([asdict(device) for device in found])
    else:
        console().print(devices_table(found))


@app.command()
def top(as_json: Json = False, url: Url = None) -> None:
    """Show servers, devices and the queue, again and again.

    It has the servers that share a database, the devices of the one that answers, and the queue.

    On a terminal the display is live; Ctrl-C ends it. Load and memory are those of the whole
    device, whoever uses it.
    """
    with Client(url) as gpu:
        if as_json:
            report = {"lanes": gpu.health().to_dict()["lanes"], "queue": asdict(gpu.jobs.queue())}
            others = _servers(gpu)
            print_json(report | ({"nodes": [asdict(node) for node in others]} if others else {}))
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
    counts = f"\n{runs} running, {waits} waiting, on {plural(queue.devices, 'device')} for jobs"
    try:
        devices = loads_table(gpu.devices())
    except NotFound:  # an older server
        devices = lanes_table(gpu.health())
    servers = _servers(gpu)
    parts: list[RenderableType] = [nodes_table(servers, queue), Text("")] if servers else []
    parts += [devices, Text(counts)]
    parts += [queue_table(queue)] if queue.entries else []
    return Group(*parts)


def _servers(gpu: Client) -> list[Node]:
    """The servers that share a database; none if one server is alone, or is an older one."""
    try:
        found = gpu.nodes().nodes
    except NotFound:
        return []
    return found if len(found) > 1 else []
