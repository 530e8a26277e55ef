"""The options that all commands share, and the functions that print.

All output passes through this module. It escapes control characters, which a terminal would act
on, and prints text from a server as it is, not as rich's markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warpcall._config import DEFAULT_URL
from warpcall._text import clean, clean_json

LINE_CHARACTERS = 10_000

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the server: http://, https:// or unix:///path. Default: WARPCALL_URL, "
        f"then the profile that `warpcall login` writes, then {DEFAULT_URL}.",
    ),
]
OpName = Annotated[
    str, typer.Argument(help="Name of the op, such as permute. `warpcall kernels` lists all.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def console() -> Console:
    """A console on standard output. Without a terminal it is so wide that each row is one line."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


def write_lines(*lines: object) -> None:
    """Print each value on one line, with control characters escaped."""
    sys.stdout.write("".join(f"{clean(str(line), LINE_CHARACTERS)}\n" for line in lines))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain texts, with control characters escaped."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(clean(str(cell))) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print `value` as JSON, with control characters written as escapes."""
    sys.stdout.write(clean_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")
