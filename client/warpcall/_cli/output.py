"""What the commands share: their common options, and how they print.

Everything that goes to a terminal goes through here, so that nothing that a server sent is obeyed
by the terminal, or read as rich's markup.
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
        "--url", metavar="URL", help=f"The server [WARPCALL_URL, the profile, {DEFAULT_URL}]."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def console() -> Console:
    """Standard output; wide where no terminal sets a width, so that each row stays one line."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


def write_lines(*lines: object) -> None:
    """Print each as one line, with its control characters escaped."""
    sys.stdout.write("".join(f"{clean(str(line), LINE_CHARACTERS)}\n" for line in lines))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of texts as they are, with their control characters escaped."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(clean(str(cell))) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print JSON that means the same as `value`, with control characters written as escapes."""
    sys.stdout.write(clean_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")
