"""The commands `warpcall implementations add`, `list`, `show`, `remove` and `environment`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from warpcall import Client
from warpcall._cli.jobs import Limit
from warpcall._cli.output import Json, OpName, Url, console, print_json, table_of, write_lines
from warpcall._cli.tables import ago, one_line, text_lines
from warpcall._cli.uploads import Before, Private, User, described, upload_of, version_lines
from warpcall.implementations import Environment, Implementation, ImplementationDetails

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of an upload: ann/my_permute, or with its version "
    "ann/my_permute@3f2a91c0."),
]  # fmt: skip

app = typer.Typer(
    help="What jobs can time: the server's code and your own.",
    no_args_is_help=True,
)


@app.command()
def add(
    op: OpName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:FUNCTION]",
            help="Python file to upload, and the function in it; default: the one with the op's "
            "name.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the upload, 1 to 48 letters, digits, _, . and -. Default: the function, "
            "if FUNCTION is given, and otherwise the file's name without its ending."
        ),
    ] = None,
    private: Private = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Upload your own implementation of an op, for jobs to time.

    \b
    warpcall implementations add permute my_permute.py
    warpcall bench permute --vs torch,ann/my_permute --shape 4096x4096 --dtype bf16 --dims 1,0
    """
    upload = upload_of(file)
    with Client(url) as gpu:
        uploaded = upload.send(gpu, op, name=name, private=private)
    if as_json:
        print_json(asdict(uploaded))
    else:
        write_lines(described(upload.path, uploaded))


@app.command("list")
def list_(
    op: Annotated[str | None, typer.Option(help="Only implementations of this op.")] = None,
    user: User = None,
    limit: Limit = 50,
    before: Before = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the server's implementations, and the latest versions of the uploads you may read."""
    with Client(url) as gpu:
        found = gpu.implementations.list(op=op, user=user, before=before, limit=limit)
    if as_json:
        print_json(asdict(found))
        return
    columns = ("name", "kind", "op", "version", "uploaded", "what it is")
    console().print(table_of(columns, [_row(one) for one in found.implementations]))
    write_lines(
        *(f"{one.module} cannot be imported: {one_line(one.error)}" for one in found.errors),
        *([f"--before {found.next} shows more"] if found.next else []),
    )


@app.command()
def show(name: Name, as_json: Json = False, url: Url = None) -> None:
    """Show an upload: its versions and its source."""
    with Client(url) as gpu:
        found = gpu.implementations.get(name)
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_facts(found), "")
        write_lines(*text_lines(found.source), wrap=False)


@app.command()
def remove(name: Name, url: Url = None) -> None:
    """Delete an upload of yours, with all versions unless NAME has one. Measured times are kept."""
    with Client(url) as gpu:
        gpu.implementations.remove(name)
    write_lines(f"{name} is deleted")


@app.command()
def environment(as_json: Json = False, url: Url = None) -> None:
    """Show what uploaded code may use on the server: versions, tools, packages and limits."""
    with Client(url) as gpu:
        found = gpu.implementations.environment()
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_environment_lines(found))


def _row(one: Implementation) -> tuple[str, ...]:
    private = "private: " if one.private else ""
    uploaded = f"{ago(one.created_at)} ago" if one.created_at else ""
    about = f"{private}{one_line(one.doc)}"
    return (one.name, one.kind, one.op or "any", one.version or "", uploaded, about)


def _facts(found: ImplementationDetails) -> Iterator[str]:
    readers = "private" if found.private else "readable by all users"
    yield f"{found.name}@{found.version}: {found.function} for {found.op}, {readers}"
    if found.doc:
        yield one_line(found.doc)
    for one in found.odd_cases:
        yield f"on a {one.device.upper()} it {one_line(one.text)}"
    yield from version_lines(found.versions)


def _environment_lines(found: Environment) -> Iterator[str]:
    if found.uploads == "off":
        yield "uploads: off, the operator must set WARPCALL_UPLOADS"
    else:
        yield f"uploads: {found.uploads}"
    if found.trouble:
        yield f"the sandbox cannot start: {found.trouble}"
    yield f"device: {found.device}, CUDA {found.cuda or 'none'}"
    yield f"Python {found.python}, torch {found.torch}, Triton {found.triton or 'none'}"
    yield "tools: " + ", ".join(f"{tool} {what or 'none'}" for tool, what in found.tools.items())
    yield "packages: " + ", ".join(f"{package} {version}" for package, version in found.packages)
    limits = found.limits
    yield (
        f"limits: {limits.source_bytes >> 10} KiB of source, {limits.check_s:g} s to import it; a "
        f"job has {limits.processes} processes, {limits.memory_bytes >> 20} MiB of memory and "
        f"{limits.tmp_bytes >> 20} MiB of temporary files"
    )
