"""The commands `compare`, `history` and `export`: what jobs have measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from warpcall import Client
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.jobs import JobId, Limit
from warpcall._cli.op_args import one_of
from warpcall._cli.output import (
    Json,
    Url,
    console,
    job_ids,
    op_names,
    plural,
    print_json,
    table_of,
    write_lines,
)
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.tables import ago, compared_lines, history_table
from warpcall._extras.files import replacing
from warpcall._jobs.client import Format
from warpcall.errors import WarpcallError
from warpcall.jobs.results import BoardEntry, History

FORMATS: dict[str, Format] = {
    "csv": "csv",
    "md": "markdown",
    "json": "json",
    "bencher": "bencher",
    "github-action-benchmark": "github-action-benchmark",
}

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """A case of an op that `history` lists.

    Attributes:
        case: its key.
        implementations: names of those that have a valid result in it.
        finished_at: when the latest of their best results was measured.
    """

    case: str
    implementations: list[str]
    finished_at: str


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", autocompletion=job_ids, help="Id of a job.")],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B", autocompletion=job_ids, help="Id of the job to compare with A."
        ),
    ],
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Compare the results of two jobs, case by case."""
    with Client(url) as gpu:
        found = gpu.jobs.compare(a, b)
    if as_json:
        print_json(asdict(found))
        return
    write_lines(*compared_lines(found))


@app.command(context_settings={"ignore_unknown_options": True})
def history(
    case: Annotated[
        str,
        typer.Argument(
            metavar="OP|CASE",
            autocompletion=op_names,
            help="An op, with the options below that say which case; or a case as results name it, "
            'such as "isin x=I64[100] ...".',
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTIONS OF THE OP]", help="Parameters such as --dims 1,0."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="SHAPES", help="Shapes of the first input: 4096x4096,8192x8192."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPES", help="Dtypes of the first input: bf16,fp32.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N,...", help="Sizes, as for bench.")
    ] = None,
    implementation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Implementation to show. Default: warpcall, and torch for a problem.",
        ),
    ] = None,
    limit: Limit = 20,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show the times of one case in all jobs, the latest first.

    \b
    warpcall history permute --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall history "permute x=BF16[4096,4096] dims=1,0" --implementation torch
    """
    rest = arguments or []
    with Client(url) as gpu:
        if case and " " not in case and not (rest or shape or dtype or size):
            _print_cases(_measured_cases(gpu, case, implementation), case, limit, as_json)
            return
        if (
            not case
            or " " in case
            or (rest and all("=" in one and not one.startswith("-") for one in rest))
        ):
            keys: Sequence[str] = [" ".join((case, *rest))]  # perhaps without quotation marks
        else:
            sweep = sweep_of(declaration_of(gpu, case), rest, shape, dtype, size or [])
            preview = gpu.jobs.preview(case, sweep=sweep)
            keys = preview.first_cases
            if preview.cases > len(keys):
                raise UsageError(
                    f"history shows at most {len(keys)} cases at once, "
                    f"got {plural(preview.cases, 'case')}"
                )
        found = [gpu.jobs.history(key, implementation=implementation, limit=limit) for key in keys]
    if as_json:
        shown = [asdict(one) for one in found]
        print_json(shown[0] if len(shown) == 1 else shown)
        return
    for one in found:
        _print_history(one, named=len(found) > 1)


@app.command()
def export(
    id: JobId,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of the file. Default: as the name of the file ends, and csv without one. "
            "CSV has op, shapes, dtypes and parameters as columns. Bencher takes bencher, the GitHub "
            "action benchmark-action/github-action-benchmark the last one.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="File to write. An existing file is replaced. Default: standard output.",
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Write what a job has measured to a file.

    \b
    warpcall export ID -o results.csv
    warpcall export ID --format md
    warpcall export ID --format bencher -o bencher.json
    """
    ending = "" if out is None else out.suffix.removeprefix(".")
    name = form or (ending if ending in FORMATS else "csv")
    wanted = FORMATS[one_of("--format", name, tuple(FORMATS))]
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a folder")
    with Client(url) as gpu:
        data = gpu.jobs.export(id, wanted)
    if data.strip() in (b"{}", b"[]"):  # nobody would notice a file without times
        raise WarpcallError(
            f"{id} has no time to track: wrong results have none, nor have kernels that no GPU ran"
        )
    if out is None:
        _write_out(data.decode("utf-8", "replace"))
        return
    with replacing(out) as file:
        file.write(data)
    write_lines(f"{out} has what {id} has measured")


def _write_out(text: str) -> None:
    if sys.stdout.isatty():  # a terminal acts on control characters
        write_lines(*text.splitlines())
    else:
        sys.stdout.write(text)


def _measured_cases(gpu: Client, op: str, implementation: str | None) -> list[MeasuredCase]:
    """The cases of an op that have a valid result on some device, those measured last first."""
    declaration_of(gpu, op)  # it raises an error that suggests other names
    first = gpu.jobs.board(op)
    boards = [first, *(gpu.jobs.board(op, device=device) for device in first.devices[1:])]
    entries: dict[str, list[BoardEntry]] = {}
    for standing in (one for board in boards for one in board.standings):
        entries.setdefault(standing.case, []).extend((*standing.entries, *standing.unranked))
    found = [
        MeasuredCase(
            case=case,
            implementations=list(dict.fromkeys(entry.implementation for entry in known)),
            finished_at=max(entry.finished_at for entry in known),
        )
        for case, known in entries.items()
        if known and implementation in (None, *(entry.implementation for entry in known))
    ]
    return sorted(found, key=lambda one: one.finished_at, reverse=True)


def _print_cases(found: list[MeasuredCase], op: str, limit: int, as_json: bool) -> None:
    shown = found[:limit]
    if as_json:
        print_json([asdict(one) for one in shown])
        return
    if not found:
        write_lines(f"no job that you may read has a valid result of {op}")
        return
    rows = [
        (one.case, ", ".join(one.implementations), f"{ago(one.finished_at)} ago") for one in shown
    ]
    console().print(table_of(("case", "implementations", "best measured"), rows))
    if len(found) > limit:
        write_lines(f"and {plural(len(found) - limit, 'more case')}: --limit")
    write_lines(f"`warpcall history {shlex.quote(shown[0].case)}` shows the times of one")


def _print_history(found: History, *, named: bool) -> None:
    if named:
        write_lines(found.case)
    if found.points:
        console().print(history_table(found))
    else:
        write_lines(f"no job that you may read has measured {found.implementation} in that case")
