"""The command `exec`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client, WarpcallError
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.job_output import goes_on
from warpcall._cli.output import Url
from warpcall._extras.files import replacing
from warpcall._jobs.job import Job
from warpcall._jobs.scratch import Follower, ScratchResult
from warpcall._text import clean
from warpcall.jobs import JobDetails

# Exit statuses besides those of the command. `timeout` and `docker` have the same ones.
TIMED_OUT, NO_STATUS, CANCELLED = 124, 125, 130

app = typer.Typer()


@app.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@job_options(only=("gpu", "node"), before="url")
def execute(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...", help="A program and its arguments. No shell reads them."
        ),
    ],
    send: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder or tarball with the files of the folder in which the command starts. Default: it is "
            "empty.",
        ),
    ] = None,
    fetch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="File or folder there that is sent back when the command has ended. It can be given several "
            "times.",
        ),
    ] = None,
    to: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for what is sent back. Default: the current one."),
    ] = Path(),
    limit_s: Annotated[
        float,
        typer.Option("--limit-s", metavar="S", help="Seconds after which the command is ended."),
    ] = 60.0,
    name: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What lists call the run. Default: the command."),
    ] = None,
    url: Url = None,
    **options: Any,
) -> None:
    """Run a command on a device, not judged.

    It is a scratch run: it waits in the queue of jobs, and then has a whole device for a bounded time. What it writes to standard
    output and standard error is printed to standard output. Ctrl-C cancels it. The exit code is that of the
    command, 128 and its number for a signal; 124 if it had reached its limit, 125 if it could not be run or
    its server stopped, 130 if it was cancelled.

    \b
    warpcall exec -- nvidia-smi
    warpcall exec --send work --fetch out.txt -- python check.py
    warpcall exec --send work -- compute-sanitizer python check.py
    """
    if send is not None and not send.exists():
        raise UsageError(f"{send}: there is no such file or folder")
    if to.exists() and not to.is_dir():
        raise UsageError(f"--to must be a folder, {to} is none")
    known = {field: value for field, value in options.items() if value is not None}
    try:
        with Client(url) as gpu:
            found = gpu.exec(
                command,
                on_output=_print,
                send=send,
                fetch=fetch or [],
                limit_s=limit_s,
                name=name,
                **known,
            )
    except WarpcallError as error:
        _say(str(error))
        raise typer.Exit(NO_STATUS) from None
    _save(found, to)
    raise typer.Exit(_exit_code(found.job))


def watch_scratch(job: Job) -> int:
    """Print what a scratch run writes, from its beginning until it has ended; its exit code."""
    follower = Follower(_print)
    with goes_on(job.id):
        for event in job.events():
            follower.on_event(event)
    job.refresh()
    assert isinstance(job.info, JobDetails)
    return _exit_code(job.info)


def _print(content: bytes, left_out: int) -> None:
    """Print a piece of the output: as it is, but without control characters on a terminal."""
    if left_out:
        _say(f"{left_out:,} bytes of the output are left out here")
    if sys.stdout.isatty():
        lines = content.decode(errors="replace").split("\n")
        sys.stdout.write("\n".join("\t".join(map(clean, line.split("\t"))) for line in lines))
        sys.stdout.flush()
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"warpcall: {clean(' '.join(text.split()))}\n")
    sys.stderr.flush()


def _save(found: ScratchResult, folder: Path) -> None:
    for path, content in found.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(content)
    for path, error in found.errors.items():
        _say(f"{path} was not sent back: {error}")


def _exit_code(job: JobDetails) -> int:
    if job.exit_status is not None and job.state in ("succeeded", "failed"):
        return job.exit_status
    _say(f"the scratch run {job.id} ended as {job.state.replace('_', ' ')}: {job.detail}")
    return {"timed_out": TIMED_OUT, "cancelled": CANCELLED}.get(job.state, NO_STATUS)
