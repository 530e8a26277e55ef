"""What the commands share: their common options, and how they print."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from warpcall._config import DEFAULT_URL

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


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
