"""The command `race`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._blocking import run_now
from warpcall._cli.bench import Dtypes, Shapes, Sizes, check_options, options_named
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.job_output import goes_on
from warpcall._cli.output import Json, Url, op_names, print_json, write_lines
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.tables import interval, microseconds, one_line, ratio
from warpcall._cli.uploads import Verified, is_file, upload_of
from warpcall._jobs import races
from warpcall._jobs.races import shown
from warpcall.errors import InvalidInput
from warpcall.jobs.request import JobRequest
from warpcall.races import FEWEST, MOST, Race

NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
CONSTANTS = {"True": True, "False": False}
COLUMNS = (
    "rank",
    "implementation",
    "median us",
    "ratio",
    "interval",
    "best in",
    "left, or why it has no rank",
)
UNDECIDED = 3  # exit code

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
@job_options(without=("priority", "profile", "sanitize"), before="detach")
def race(
    context: typer.Context,
    op: Annotated[
        str,
        typer.Argument(
            autocompletion=op_names,
            help="Name of the op, such as permute, or of a problem, such as ann/row-norm.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE[:FUNCTION]|NAME... [OPTIONS OF THE OP]",
            help="What races: files, folders or tarballs to upload, and implementations such as torch or ann/mine. Then "
            "parameters such as --dims 1,0.",
        ),
    ] = None,
    mine: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Upload every .py file in this folder, too."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="Tune one file: values of a constant that its module assigns at its top level, such "
            "as BLOCK=64,128. Can be repeated; all combinations race.",
        ),
    ] = None,
    verified: Verified = False,
    shape: Shapes = None,
    dtype: Dtypes = None,
    size: Sizes = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the results.")] = False,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Find the fastest of several implementations.

    Files are uploaded, checked and timed in one job. Whoever is surely slower than the fastest is timed
    no more, until one is surely the fastest, or the others are the same within 1 %, or the time is
    up. Over several cases, the geometric mean decides. The exit code is 0 if there is a winner or a
    tie, and 3 if it is undecided.

    \b
    warpcall race permute a.py b.py torch --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall race permute --verified a.py b.cu --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall race permute --mine candidates --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall race permute a.py --over BLOCK=64,128,256 --over num_warps=4,8 --shape 4096x4096 --dtype bf16 --dims 1,0
    """
    given, rest = _split(arguments or [])
    files, names = (
        [one for one in given if is_file(one)],
        [one for one in given if not is_file(one)],
    )
    files += _files_in(mine)
    chosen = JobRequest(op, **options, implementations=names)
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        check_options(context, declaration)
        sweep = sweep_of(declaration, rest, shape, dtype, size or [])
        entrants = _entrants(files, _over(over or []), verified, op)
        if len(entrants) + len(names) < FEWEST or len(entrants) + len(names) > MOST:
            raise UsageError(
                f"a race needs {FEWEST} to {MOST} implementations, got {len(entrants) + len(names)}"
            )
        tell: races.Said = _say_nothing if as_json else _say
        with options_named(op, declaration):
            sent = races.race(gpu._core, replace(chosen, sweep=sweep), entrants, tell)
            submitted = run_now(sent)
        job = submitted.job
        if detach:
            if as_json:
                print_json(asdict(job.info))
            else:
                write_lines(f"warpcall watch {job.id}")
            return
        with goes_on(job.id):
            found = run_now(races.outcome(submitted))
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*race_lines(found))
        if job.page_url is not None:
            write_lines(job.page_url)
    if found.outcome not in ("winner", "same"):
        raise typer.Exit(UNDECIDED)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What races, which comes first, and the options of the op."""
    begin = next((n for n, one in enumerate(arguments) if one.startswith("-")), len(arguments))
    return list(arguments[:begin]), list(arguments[begin:])


def _files_in(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    if not folder.is_dir():
        raise UsageError(f"--mine must be a folder, got {str(folder)!r}")
    found = sorted(str(one) for one in folder.glob("*.py") if one.is_file())
    if not found:
        raise UsageError(f"--mine: there is no .py file in {folder}")
    return found


def _entrants(
    files: Sequence[str], over: Mapping[str, list[Any]] | None, verified: bool, op: str
) -> list[races.Entrant]:
    uploads = [upload_of(one) for one in files]
    if over is None:
        return [
            races.Entrant(one.path, str(one.path), function=one.function, verified=verified)
            for one in uploads
        ]
    if len(uploads) != 1:
        raise UsageError(f"--over is for one file, got {len(uploads)}")
    try:
        return races.entrants_of(
            [uploads[0].path], over, uploads[0].function, op, verified=verified
        )
    except InvalidInput as error:
        raise UsageError(f"--{error.detail}") from None


def _over(given: Sequence[str]) -> dict[str, list[Any]] | None:
    """Parse the options --over: NAME=VALUE,VALUE."""
    found: dict[str, list[Any]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier() or not values:
            raise UsageError(f"--over must be such as BLOCK=64,128, got {text!r}")
        if name in found:
            raise UsageError(f"--over must name {name} once")
        found[name] = [_value(one) for one in values.split(",")]
    return found or None


def _value(text: str) -> Any:
    """A value: a number, True, False, or otherwise a text."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _say(text: str) -> None:
    write_lines(one_line(text))


def _say_nothing(text: str) -> None:
    """In place of `_say`, where the output is JSON."""


def race_lines(found: Race) -> list[str]:
    """The ranking, how each case ended, what it cost, and the outcome."""
    rows = [
        (
            "-" if one.rank is None else str(one.rank),
            shown(one.configuration) or one.implementation,
            one.status if one.status != "ok" else microseconds(one.median_us),
            ratio(one.ratio),
            interval(ratio, one.ratio_low, one.ratio_high),
            f"{one.best_in}/{len(found.cases)}",
            one_line("; ".join(filter(None, (one.error, one.left)))),
        )
        for one in found.entries
    ]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (COLUMNS, *rows)
    ]
    if len(found.cases) > 1:
        lines += [f"{c.case}: {c.outcome}, {', '.join(c.fastest)}" for c in found.cases]
        if found.never_best:
            lines.append(f"never the fastest: {', '.join(found.never_best)}")
    lines += [f"{label} did not race: {one_line(why)}" for label, why in found.refused.items()]
    cost = f"timed calls took {found.device_s:.3g} s"
    if found.full_device_s is not None:
        cost += f"; measuring all fully would take some {found.full_device_s:.3g} s"
    lines += [cost, found.sentence]
    return lines + [f"{name} = {value!r}" for name, value in found.configuration.items()]
