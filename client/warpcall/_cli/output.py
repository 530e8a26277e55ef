"""The options that all commands share, what a shell completes of them, and the functions that print.

All output passes through this module. It escapes control characters, which a terminal would act
on, and prints text from a server as it is, not as rich's markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warpcall import Client, WarpcallError
from warpcall._config import DEFAULT_URL
from warpcall._text import clean, clean_json, wrap_line

LINE_CHARACTERS = 10_000
KIB = 1024
COMPLETION_S = 2.0  # a shell waits no longer for a completion
MOST_JOBS = 50


def op_names(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The ops whose names begin so, each with its summary; none if the server does not answer."""
    try:
        with _client(context) as gpu:
            found = gpu.kernels()
    except WarpcallError:
        return
    yield from ((op["name"], op["summary"]) for op in found if op["name"].startswith(incomplete))


def job_ids(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The user's latest jobs whose ids begin so; none if the server does not answer."""
    try:
        with _client(context) as gpu:
            found = gpu.jobs.list(limit=MOST_JOBS)
    except WarpcallError:
        return
    yield from ((job.id, f"{job.op} {job.state}") for job in found if job.id.startswith(incomplete))


def _client(context: typer.Context) -> Client:
    return Client(context.params.get("url"), timeout_s=COMPLETION_S, retries=0, progress=False)


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the server: http://, https:// or unix:///path; of several that share a "
        "database, with commas between them. Default: WARPCALL_URL, "
        f"then the profile that `warpcall login` writes, then {DEFAULT_URL}.",
    ),
]
OpName = Annotated[
    str,
    typer.Argument(
        autocompletion=op_names, help="Name of the op, such as permute. `warpcall ops` lists all."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def human_bytes(nbytes: float) -> str:
    """A number of bytes for readers: 1 byte, 144 KiB, 1.5 GiB."""
    if nbytes < KIB:
        return plural(int(nbytes), "byte")
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= KIB
        if nbytes < KIB - 0.5:
            return f"{nbytes:.3g} {unit}" if nbytes < 100 else f"{nbytes:.0f} {unit}"
    return f"{nbytes / KIB:,.4g} TiB"


def plural(count: int, noun: str) -> str:
    """A number with its noun: 1 case, 2 cases, 1,000 cases."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def console() -> Console:
    """A console on standard output. Without a terminal it is so wide that each row is one line."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


def write_lines(*lines: object, wrap: bool = True) -> None:
    """Print each value on one line, with control characters escaped.

    On a terminal a line that is longer than the terminal is wide goes on below, between words.

    Args:
        wrap: false for source code, which is printed as it is.
    """
    shown = [clean(str(line), LINE_CHARACTERS) for line in lines]
    if wrap and sys.stdout.isatty():
        shown = [wrap_line(line) for line in shown]
    sys.stdout.write("".join(f"{line}\n" for line in shown))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain texts, with control characters escaped.

    The first column is never wrapped or cut: it has the names and ids that other commands take.
    """
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(map(clean, str(cell).split("\n")))) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print `value` as JSON, with control characters written as escapes."""
    sys.stdout.write(clean_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")
