"""The commands `warpcall implementations` and `warpcall problems`, each with `add`, `list`, `show` and
`remove`, and `warpcall implementations environment`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from warpcall import Client
from warpcall._cli.jobs import Limit
from warpcall._cli.output import (
    Json,
    OpName,
    Url,
    console,
    human_bytes,
    print_json,
    table_of,
    write_lines,
)
from warpcall._cli.tables import ago, one_line, text_lines
from warpcall._cli.uploads import Launches, Verified, described, errors_naming, verified_uploads
from warpcall.implementations import (
    Environment,
    Implementation,
    ImplementationDetails,
    UploadedImplementation,
)
from warpcall.problems import ProblemDetails, ProblemInfo, UploadedProblem

Private = Annotated[
    bool | None,
    typer.Option(
        "--private/--public",
        help="Who may read and time it: you and administrators, or all users. Default: as the "
        "version before; the first is public.",
    ),
]
User = Annotated[str | None, typer.Option(help="Only uploads of this user.")]
Before = Annotated[str | None, typer.Option(metavar="NEXT", help="Where the previous page ended.")]
ImplementationName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of an upload: ann/my_permute, or with its version "
    "ann/my_permute@3f2a91c0."),
]  # fmt: skip
ProblemName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a problem: ann/row-norm, or with its version "
    "ann/row-norm@3f2a91c0."),
]  # fmt: skip

implementations = typer.Typer(
    help="What jobs can time: the server's code and your own.",
    no_args_is_help=True,
)
problems = typer.Typer(
    help="Ops of your own, which jobs measure like the server's.",
    no_args_is_help=True,
)


@implementations.command("add")
def add_implementation(
    op: OpName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:FUNCTION]",
            help="File to upload, in Python or CUDA C++ (.cu), and the function in it; default: the "
            "one with the op's name. Or a folder or a tarball of files: DIR[:MODULE.FUNCTION].",
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
    verified: Verified = False,
    launches: Launches = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Upload your own implementation of an op, for jobs to time.

    \b
    warpcall implementations add permute my_permute.py
    warpcall bench permute --vs torch,ann/my_permute --shape 4096x4096 --dtype bf16 --dims 1,0
    """
    (upload,) = verified_uploads([file], verified=verified, launches=launches)
    with Client(url) as gpu:
        uploaded = upload.send(gpu, op, name=name, private=private)
    _print_uploaded(upload.path, uploaded, as_json)


@implementations.command("list")
def list_implementations(
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
    console().print(table_of(columns, [_implementation_row(one) for one in found.implementations]))
    write_lines(
        *(f"{one.module} cannot be imported: {one_line(one.error)}" for one in found.errors),
        *([f"--before {found.next} shows more"] if found.next else []),
    )


@implementations.command("show")
def show_implementation(
    name: ImplementationName,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Write this file of an upload of several files to standard output, as it was sent.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show an upload: its versions, its files and its source."""
    with Client(url) as gpu:
        if file is not None:
            sys.stdout.buffer.write(gpu.implementations.read_file(name, file))
            return
        found = gpu.implementations.get(name)
    _print_details(found, as_json)


@implementations.command("remove")
def remove_implementation(name: ImplementationName, url: Url = None) -> None:
    """Delete an upload of yours, with all versions unless NAME has one. Measured times are kept."""
    with Client(url) as gpu:
        gpu.implementations.remove(name)
    write_lines(f"{name} is deleted")


@implementations.command("environment")
def show_environment(as_json: Json = False, url: Url = None) -> None:
    """Show what uploaded code may use on the server: versions, tools, packages and limits."""
    with Client(url) as gpu:
        found = gpu.implementations.environment()
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_environment_lines(found))


@problems.command("add")
def add_problem(
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
    _print_uploaded(path, uploaded, as_json)


@problems.command("list")
def list_problems(
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
        console().print(table_of(columns, [_problem_row(one) for one in found.problems]))
    else:
        write_lines("no problems")
    if found.next:
        write_lines(f"--before {found.next} shows more")


@problems.command("show")
def show_problem(name: ProblemName, as_json: Json = False, url: Url = None) -> None:
    """Show a problem: its versions and its source. `warpcall ops NAME` shows its options."""
    with Client(url) as gpu:
        found = gpu.problems.get(name)
    _print_details(found, as_json)


@problems.command("remove")
def remove_problem(name: ProblemName, url: Url = None) -> None:
    """Delete a problem of yours, with all versions unless NAME has one. Measured times are kept."""
    with Client(url) as gpu:
        gpu.problems.remove(name)
    write_lines(f"{name} is deleted")


def _implementation_row(one: Implementation) -> tuple[str, ...]:
    private = "private: " if one.private else ""
    uploaded = f"{ago(one.created_at)} ago" if one.created_at else ""
    about = f"{private}{one_line(one.doc)}"
    return (one.name, one.kind, one.op or "any", one.version or "", uploaded, about)


def _problem_row(one: ProblemInfo) -> tuple[str, ...]:
    private = "private: " if one.private else ""
    inputs, sizes = ", ".join(one.inputs), ", ".join(one.sizes)
    about = f"{private}{one_line(one.doc)}"
    return (one.name, inputs, sizes, one.version, f"{ago(one.created_at)} ago", about)


def _print_uploaded(
    path: Path, uploaded: UploadedImplementation | UploadedProblem, as_json: bool
) -> None:
    if as_json:
        print_json(asdict(uploaded))
    else:
        write_lines(described(path, uploaded))


def _print_details(found: ImplementationDetails | ProblemDetails, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
    else:
        write_lines(*_facts(found), "")
        write_lines(*text_lines(found.source), wrap=False)


def _facts(found: ImplementationDetails | ProblemDetails) -> Iterator[str]:
    readers = "private" if found.private else "readable by all users"
    known: list[str] = []
    if isinstance(found, ImplementationDetails):
        readers = f"{found.function} for {found.op}, {readers}"
        known = [f"on a {one.device.upper()} it {one_line(one.text)}" for one in found.odd_cases]
    yield f"{found.name}@{found.version}: {readers}"
    if found.doc:
        yield one_line(found.doc)
    yield from known
    if isinstance(found, ImplementationDetails) and found.files:
        yield f"  {found.entry} (the source)"
        yield from (f"  {one.path}, {human_bytes(one.nbytes)}" for one in found.files)
    for version in found.versions:
        yield f"  {version.version}  {ago(version.created_at)} ago, {human_bytes(version.nbytes)}"


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
    files = ""
    if limits.files > 1:
        files = f", {limits.files} files with {human_bytes(limits.tree_bytes)} together"
    yield (
        f"limits: {limits.source_bytes >> 10} KiB of source{files}, {limits.check_s:g} s to import it; a "
        f"job has {limits.processes} processes, {limits.memory_bytes >> 20} MiB of memory and "
        f"{limits.tmp_bytes >> 20} MiB of temporary files"
    )
