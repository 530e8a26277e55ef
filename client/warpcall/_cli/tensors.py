"""`warpcall tensors`: put files on the server's device, list what is there, get it, delete it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client, NotFound
from warpcall._cli.files import UsageError, check_target, read_inputs, write_outputs
from warpcall._cli.output import Json, Url, console, print_json, table_of
from warpcall._tensors import BaseStoredTensor
from warpcall.dtypes import CODES

MARK = "@"  # before the id of a tensor, where a file might stand

app = typer.Typer(help="Tensors that stay on the server's device.", no_args_is_help=True)


@app.command("list")
def list_(as_json: Json = False, url: Url = None) -> None:
    """List what you keep there."""
    with Client(url) as gpu:
        print_stored({tensor.id: tensor for tensor in gpu.tensors()}, as_json=as_json)


@app.command()
def put(
    file: Annotated[str, typer.Argument(help="x.npy, or x.safetensors with one tensor.")],
    id: Annotated[str | None, typer.Option(help="What to call it; else a new id.")] = None,
    ttl_s: Annotated[
        float | None,
        typer.Option("--ttl-s", metavar="S", help="Seconds after its last use until it goes."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where, such as cuda:1; else the least busy.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Put a file there; ops then take it as name=@ID."""
    (array,) = read_inputs([f"x={file}"], ["x"]).values()
    with Client(url) as gpu:
        tensor = gpu.put(array, id=id, ttl_s=ttl_s, device=device)
        print_stored({tensor.id: tensor}, as_json=as_json)


@app.command()
def get(
    id: Annotated[str, typer.Argument(help="As `warpcall tensors list` shows it.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .npy or .safetensors file; replaced if there.")
    ],
    url: Url = None,
) -> None:
    """Copy one to a file."""
    check_target(str(out))
    with Client(url) as gpu:
        write_outputs({id: find(gpu, [id])[id].get()}, str(out))


@app.command()
def delete(
    ids: Annotated[list[str], typer.Argument(help="As `warpcall tensors list` shows them.")],
    url: Url = None,
) -> None:
    """Free some."""
    with Client(url) as gpu:
        for tensor in find(gpu, ids).values():
            tensor.delete()


def find(gpu: Client, ids: Sequence[str]) -> dict[str, Any]:
    """The stored tensors with these ids, or NotFound."""
    there = {tensor.id: tensor for tensor in gpu.tensors()}
    for id_ in ids:
        if id_ not in there:
            known = ", ".join(there) or "none"
            raise NotFound(f"there is no tensor {id_!r}, there are {known}", field="id")
    return {id_: there[id_] for id_ in ids}


def take_ids(arguments: Sequence[str], declared: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate arguments such as x=@photo from files: the ids by input."""
    files: list[str] = []
    ids: dict[str, str] = {}
    for argument in arguments:
        name, _, id_ = argument.partition(f"={MARK}")
        if argument.startswith(MARK):
            raise UsageError(
                f"{argument} must say for which input it is, such as {declared[0]}={argument}"
            )
        if not id_:
            files.append(argument)
        elif name in ids or name not in declared:
            raise UsageError(f"{argument} must name an input, once: {', '.join(declared)}")
        else:
            ids[name] = id_
    return files, ids


def print_stored(stored: Mapping[str, BaseStoredTensor[Any]], *, as_json: bool) -> None:
    """What is on the device, by the name that it has here."""
    rows = {
        name: {
            "id": t.id,
            "dtype": CODES[t.dtype],
            "shape": list(t.shape),
            "nbytes": t.nbytes,
            "device": t.device,
            "expires": t.expires.isoformat(),
        }
        for name, t in stored.items()
    }
    if as_json:
        print_json(rows)
        return
    columns = ("id", "dtype", "shape", "bytes", "device", "expires")
    console().print(table_of(columns, [tuple(row.values()) for row in rows.values()]))
    sys.stdout.flush()
