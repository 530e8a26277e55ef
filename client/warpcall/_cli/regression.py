"""The command `regression`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
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
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.op_args import one_of
from warpcall._cli.output import Json, OpName, Url, job_ids, print_json, write_lines
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.tables import by_case, interval, microseconds, one_line, ratio
from warpcall._cli.uploads import described, is_file, job_names, upload_of
from warpcall._config import UNIX, split_urls
from warpcall._extras.files import replacing
from warpcall._jobs.names import without_version
from warpcall.jobs import TIMED_PRECISIONS
from warpcall.jobs.request import JobRequest
from warpcall.regressions import MOST_ALLOWED, Outcome, Regression

EXITS: dict[Outcome, int] = {"passed": 0, "slower": 1, "failed": 1, "undecided": 3}
COLUMNS = ("base", "head", "head/base", "95 % CI", "jobs", "outcome")
STANDARD_OUTPUT = "-"

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
@job_options(only=("private", "gpu", "node"), before="markdown")
def regression(
    op: OpName,
    arguments: OpArguments = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="What --head is compared with: a file to upload, such as old.py or old.py:fast, "
            "or the name of an implementation, such as warpcall or ann/my_permute@3f2a91c0.",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="What is checked, as for --base. Default with --baseline: the first implementation "
            "of that job.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="JOB",
            autocompletion=job_ids,
            help="Compare with the stored times of this job, in place of --base. Its cases are "
            "measured unless --shape, --dtype or --size name others.",
        ),
    ] = None,
    allow: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="By how many percent of the time of --base a case may be slower.",
        ),
    ] = 1.0,
    shape: Shapes = None,
    dtype: Dtypes = None,
    size: Sizes = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Seconds for an implementation of a case in a job: quick (2), standard (10), "
            "publish (60). The third job has at least 10."
        ),
    ] = "quick",
    tag: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Tag of the jobs. Can be repeated.")
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the result there as Markdown, for a comment on a pull request. With - it is "
            "written in place of the table.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Check whether an implementation got slower.

    Both are measured in the rounds of one job. What it leaves open is measured again in one or two
    further jobs, and a case is slower only if two jobs find it. The exit code is 0 if no case is
    slower, 1 if one is or has no time, and 3 if a case is undecided.

    \b
    warpcall regression permute --base old.py --head new.py --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall regression permute --baseline 3f2a91c0 --markdown check.md
    """
    _check_choice(base, head, baseline, allow)
    chosen = JobRequest(
        op,
        precision=one_of("--precision", precision, TIMED_PRECISIONS),
        tags=tag,
        **options,
    )
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        swept = baseline is None or any((shape, dtype, size, arguments))
        sweep = sweep_of(declaration, arguments or [], shape, dtype, size or []) if swept else None
        quiet = as_json or markdown == STANDARD_OUTPUT
        names = _uploaded(gpu, without_version(op), [base, head], chosen.private, quiet=quiet)
        with options_named(op, declaration):
            found = gpu.regressions.check(
                replace(chosen, sweep=sweep),
                base=names[0],
                head=names[1],
                baseline=baseline,
                allowed=allow / 100,
            )
        server = split_urls(gpu.url)[0]
        links = None if server.startswith(UNIX) else f"{server}/jobs/"
    if markdown == STANDARD_OUTPUT:
        write_lines(*found.to_markdown(links).splitlines())
    elif markdown is not None:
        with replacing(Path(markdown)) as file:
            file.write(found.to_markdown(links).encode())
    if as_json:
        print_json(asdict(found))
    elif markdown != STANDARD_OUTPUT:
        write_lines(*regression_lines(found))
    raise typer.Exit(EXITS[found.outcome])


def _check_choice(base: str | None, head: str | None, baseline: str | None, allow: float) -> None:
    """Raise UsageError if the options do not say what is compared with what."""
    if not 0 < allow <= 100 * MOST_ALLOWED:
        raise UsageError(
            f"--allow must be above 0 and at most {100 * MOST_ALLOWED:g} percent, got {allow:g}"
        )
    if baseline is not None and base is not None:
        raise UsageError("--base and --baseline cannot be given together")
    if baseline is None and (base is None or head is None):
        raise UsageError("--base and --head must both be given, or --baseline")


def _uploaded(
    gpu: Client, op: str, given: Sequence[str | None], private: bool | None, *, quiet: bool
) -> list[str | None]:
    """The names of implementations, of which some are given as files. These are uploaded."""
    uploads = [upload_of(text) if text is not None and is_file(text) else None for text in given]
    sent = [None if one is None else one.send(gpu, op, private=private) for one in uploads]
    names = iter(job_names([one for one in sent if one is not None]))
    if not quiet:
        for upload, one in zip(uploads, sent, strict=True):
            if upload is not None and one is not None:
                write_lines(described(upload.path, one))
    return [text if one is None else next(names) for text, one in zip(given, sent, strict=True)]


def regression_lines(found: Regression) -> list[str]:
    """A line for each case, what is undecided and why, and the outcome."""
    rows = []
    for row in found.rows:
        cells = (
            microseconds(row.base_us),
            microseconds(row.head_us),
            ratio(row.ratio),
            interval(ratio, row.ratio_low, row.ratio_high),
            str(row.jobs),
            row.outcome,
        )
        rows.append((row.case, "", cells))
    why = [f"{row.case}: {one_line(row.why)}" for row in found.rows if row.why]
    table = [f"base: {found.base}, head: {found.head}; times in us", *by_case(COLUMNS, rows)]
    jobs = [f"jobs: {' '.join(found.jobs)}"]
    return [*(table + why + jobs if rows else []), f"{found.outcome}: {found.sentence}"]
