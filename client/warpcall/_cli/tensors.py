"""The commands `warpcall tensors put`, `list`, `get` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client, NotFound
from warpcall._arrays import CODES
from warpcall._cli.files import UsageError, check_target, read_inputs, write_outputs
from warpcall._cli.output import (
    Json,
    Url,
    console,
    human_bytes,
    print_json,
    table_of,
    write_lines,
)
from warpcall._jobs.progress import span
from warpcall._tensors import BaseStoredTensor
from warpcall._text import did_you_mean

MARK = "@"  # stands before the id of a stored tensor in place of a file

app = typer.Typer(
    help="Tensors that stay on the server's device between calls.", no_args_is_help=True
)


@app.command("list")
def list_(as_json: Json = False, url: Url = None) -> None:
    """List your stored tensors."""
    with Client(url) as gpu:
        print_stored({tensor.id: tensor for tensor in gpu.tensors()}, as_json=as_json)


@app.command()
def put(
    file: Annotated[
        str, typer.Argument(help="File to store: x.npy, or x.safetensors with one tensor.")
    ],
    id: Annotated[
        str | None,
        typer.Option(
            help="Id of the stored tensor. Default: a new id. A tensor that has the id is replaced."
        ),
    ] = None,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            "--ttl-s",
            metavar="S",
            help="Seconds after its last use until it is deleted. Default: the server's setting.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device that stores it, such as cuda:1. Default: the least busy."),
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Store a file on the server's device. `warpcall run` takes it as name=@ID."""
    (array,) = read_inputs([f"x={file}"], ["x"]).values()
    with Client(url) as gpu:
        tensor = gpu.put(array, id=id, ttl_s=ttl_s, device=device)
        print_stored({tensor.id: tensor}, as_json=as_json)


@app.command()
def get(
    id: Annotated[str, typer.Argument(help="Id of a stored tensor, from `warpcall tensors list`.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="File to write: .npy or .safetensors. An existing file is replaced."
        ),
    ],
    url: Url = None,
) -> None:
    """Copy a stored tensor to a file."""
    check_target(str(out))
    with Client(url) as gpu:
        write_outputs({id: find(gpu, [id])[id].get()}, str(out))


@app.command()
def delete(
    ids: Annotated[
        list[str], typer.Argument(help="Ids of stored tensors, from `warpcall tensors list`.")
    ],
    url: Url = None,
) -> None:
    """Delete stored tensors."""
    with Client(url) as gpu:
        for tensor in find(gpu, ids).values():
            tensor.delete()


def find(gpu: Client, ids: Sequence[str]) -> dict[str, Any]:
    """The stored tensors by these ids, each of which may be only the beginning of the id.

    Raises:
        NotFound: no id begins so.
        UsageError: several ids begin so, and none is just this.
    """
    there = {tensor.id: tensor for tensor in gpu.tensors()}
    return {id_: there[_whole_id(id_, there)] for id_ in ids}


def _whole_id(given: str, known: Collection[str]) -> str:
    if given in known:
        return given
    found = [id_ for id_ in known if given and id_.startswith(given)]
    if len(found) > 1:
        raise UsageError(f"several tensors begin with {given}: {', '.join(found)}")
    if not found:
        there = ", ".join(known) or "none"
        meant = did_you_mean(given, known)
        raise NotFound(f"there is no tensor {given!r}, there are {there}{meant}", field="id")
    return found[0]


def take_ids(arguments: Sequence[str], declared: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate arguments such as x=@photo from files. Return the files, and the ids by input."""
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
    """Print stored tensors as a table, or as JSON by the given names."""
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
    if not rows:
        write_lines("no stored tensors")
        return
    columns = ("id", "dtype", "shape", "size", "device", "expires in")
    cells = [
        (t.id, t.dtype, list(t.shape), human_bytes(t.nbytes), t.device, span(left_s(t)))
        for t in stored.values()
    ]
    console().print(table_of(columns, cells))
    sys.stdout.flush()


def left_s(tensor: BaseStoredTensor[Any]) -> float:
    """Seconds until a stored tensor is deleted, if nothing uses it until then."""
    return max(0.0, (tensor.expires - datetime.now(UTC)).total_seconds())
