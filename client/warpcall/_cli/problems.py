"""The commands `warpcall problems add`, `list`, `show` and `remove`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from warpcall import Client
from warpcall._cli.jobs import Limit
from warpcall._cli.output import Json, Url, console, print_json, table_of, write_lines
from warpcall._cli.tables import ago, one_line, text_lines
from warpcall._cli.uploads import Before, Private, User, described, errors_naming, version_lines
from warpcall.problems import ProblemDetails, ProblemInfo

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a problem: ann/row-norm, or with its version "
    "ann/row-norm@3f2a91c0."),
]  # fmt: skip

app = typer.Typer(
    help="Ops of your own, which jobs measure like the server's.",
    no_args_is_help=True,
)


@app.command()
def add(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Python file with PROBLEM = Problem(...).")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the problem, 1 to 48 letters, digits, _, . and -. Default: that of the "
            "reference function, with - for _."
        ),
    ] = None,
    private: Private = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Upload an op of your own: a reference, its inputs by size, and tolerances.

    \b
    warpcall problems add row_norm.py
    warpcall bench ann/row-norm --mine fast.py --size rows=4096,columns=1000,1024
    """
    path = Path(file)
    with Client(url) as gpu, errors_naming(path, name):
        uploaded = gpu.problems.add(path, name=name, private=private)
    if as_json:
        print_json(asdict(uploaded))
    else:
        write_lines(described(path, uploaded))


@app.command("list")
def list_(
    user: User = None,
    limit: Limit = 50,
    before: Before = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the latest versions of the problems that you may read."""
    with Client(url) as gpu:
        found = gpu.problems.list(user=user, before=before, limit=limit)
    if as_json:
        print_json(asdict(found))
        return
    if found.problems:
        columns = ("name", "inputs", "sizes", "version", "uploaded", "what it is")
        console().print(table_of(columns, [_row(one) for one in found.problems]))
    else:
        write_lines("no problems")
    if found.next:
        write_lines(f"--before {found.next} shows more")


@app.command()
def show(name: Name, as_json: Json = False, url: Url = None) -> None:
    """Show a problem: its versions and its source. `warpcall ops NAME` shows its options."""
    with Client(url) as gpu:
        found = gpu.problems.get(name)
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_facts(found), "")
        write_lines(*text_lines(found.source), wrap=False)


@app.command()
def remove(name: Name, url: Url = None) -> None:
    """Delete a problem of yours, with all versions unless NAME has one. Measured times are kept."""
    with Client(url) as gpu:
        gpu.problems.remove(name)
    write_lines(f"{name} is deleted")


def _row(one: ProblemInfo) -> tuple[str, ...]:
    private = "private: " if one.private else ""
    inputs, sizes = ", ".join(one.inputs), ", ".join(one.sizes)
    about = f"{private}{one_line(one.doc)}"
    return (one.name, inputs, sizes, one.version, f"{ago(one.created_at)} ago", about)


def _facts(found: ProblemDetails) -> Iterator[str]:
    readers = "private" if found.private else "readable by all users"
    yield f"{found.name}@{found.version}: {readers}"
    if found.doc:
        yield one_line(found.doc)
    yield from version_lines(found.versions)
