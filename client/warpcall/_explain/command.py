"""The command `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.bench import options_named
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.op_args import one_of
from warpcall._cli.output import Json, Url, print_json, write_lines
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.uploads import GpuName, is_file, upload_of
from warpcall._explain.gpus import architecture_of
from warpcall._explain.tables import difference_lines, report_lines, text_lines_of
from warpcall._jobs.names import without_version
from warpcall._jobs.source import CUDA_SUFFIX
from warpcall.compile_reports import ARCHITECTURES, GPU, TEXT_NAMES, CompileReport, TextName
from warpcall.errors import InvalidInput, NotFound

DIFFERENCE: TextName = "ptx"  # the text whose differences are shown without --show

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A file such as fast.py or fast.py:permute, an upload such as ann/my_permute or "
            "ann/my_permute@3f2a91c0, or an op of the server such as permute.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OP] [OPTIONS OF THE OP]",
            help="Of a file: the op or the problem that it implements; default: the op with the name "
            "of the function or of the file. Then parameters such as --dims 1,0.",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="Shape of the first input: 4096x4096. Not for problems."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Dtype of the first input: bf16. Default for a problem: its first."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N", help="Size that no shape determines: taps=3. Can be repeated."
        ),
    ] = None,
    gpu_name: GpuName = GPU,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Print a text of each kernel in place of the table: ptx, sass, ttir or ttgir. "
            "With --diff: the text to compare; default: ptx.",
        ),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Compare with this older version, which is named as WHAT is.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show what kernels need on a GPU.

    That is registers, spills, shared memory, occupancy, PTX and SASS of the Triton kernels of an implementation.
    The server compiles the kernels for the architecture that is named and needs no GPU for it. It
    calls the implementation once, in a sandbox, with launches that compute nothing.

    \b
    warpcall explain my_permute.py:permute --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall explain permute --gpu sm_80 --shape 4096x4096 --dtype bf16 --dims 1,0 --show sass
    warpcall explain new.py permute --diff old.py --shape 4096x4096 --dtype bf16 --dims 1,0
    """
    chosen = None if show is None else one_of("--show", show, TEXT_NAMES)
    texts = [chosen or DIFFERENCE] if chosen or diff is not None else []
    try:
        architecture = one_of("--gpu", architecture_of(gpu_name, "--gpu"), ARCHITECTURES)
    except InvalidInput as error:
        raise UsageError(error.detail) from None
    rest = list(arguments or [])
    with Client(url) as gpu:
        op = _op_of(gpu, what, rest)
        targets = [_target_of(name, op) for name in (what, diff) if name is not None]
        declaration = declaration_of(gpu, op)
        case = _case_of(sweep_of(declaration, rest, shape, dtype, size or []))
        found = []
        for one in targets:
            with options_named(op, declaration):
                wanted = TEXT_NAMES if as_json else texts
                found.append(one.explain(gpu, op, case, architecture, wanted))
    if as_json:
        reports = [one.to_dict() for one in found]
        print_json({"new": reports[0], "old": reports[1]} if diff is not None else reports[0])
    elif diff is not None:
        write_lines(*difference_lines(found[1], found[0], (diff, what), texts[0]), wrap=False)
    elif chosen is not None:
        write_lines(*text_lines_of(found[0], chosen), wrap=False)
    else:
        write_lines(*report_lines(found[0], what))


@dataclass(frozen=True)
class _Target:
    """What a command names: a file and the function in it, or an upload, or neither."""

    path: Path | None = None
    function: str | None = None
    implementation: str | None = None

    def explain(
        self, gpu: Client, op: str, case: Mapping[str, Any], name: str, texts: Sequence[TextName]
    ) -> CompileReport:
        if self.path is None:
            return gpu.explain(op, case, implementation=self.implementation, gpu=name, texts=texts)
        try:
            return gpu.explain(
                op, case, code=self.path, function=self.function, gpu=name, texts=texts
            )
        except InvalidInput as error:
            if error.field not in ("source", "function", "files", "entry"):
                raise
            detail = error.detail.removeprefix(f"{error.field}: ")
            raise UsageError(f"{self.path}: {detail}") from None


def _target_of(what: str, op: str) -> _Target:
    if is_file(what):
        upload = upload_of(what)
        if upload.path.suffix == CUDA_SUFFIX:
            raise UsageError(
                f"{upload.path}: explain compiles Triton kernels; `warpcall verify` compiles CUDA C++"
            )
        return _Target(upload.path, upload.function)
    if "/" in what:
        return _Target(implementation=what)
    if what != without_version(op):
        raise UsageError(f"{what!r:.60} is no file, no upload such as ann/my_permute, and not {op}")
    return _Target()


def _op_of(gpu: Client, what: str, rest: list[str]) -> str:
    """The op, which is taken out of `rest` if it is named there."""
    named = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if not is_file(what):
        if named is not None:
            raise UsageError(f"explain takes {what}, then options, got {named!r:.60} as well")
        return gpu.implementations.get(what).op or "" if "/" in what else what
    if named is not None:
        return named
    upload = upload_of(what)
    guess = (
        (upload.function or upload.path.name.partition(".")[0]).rpartition(".")[2].replace("_", "-")
    )
    try:
        gpu.op(guess)
    except NotFound:
        raise UsageError(
            f"name the op that {upload.path} implements: warpcall explain {what} OP; `warpcall ops` "
            "lists them"
        ) from None
    return guess


def _case_of(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The one case of a sweep."""
    values = {
        "--shape": sweep.get("shapes", [None]),
        "--dtype": sweep.get("dtypes", [None]),
        **{f"--{name.replace('_', '-')}": found for name, found in sweep.get("params", {}).items()},
        **{f"--size {name}": found for name, found in sweep.get("sizes", {}).items()},
    }
    for option, found in values.items():
        if len(found) > 1:
            raise UsageError(
                f"{option} must have one value, explain takes one case; got {len(found)}"
            )
    case = {
        "shape": values["--shape"][0],
        "dtype": values["--dtype"][0],
        "params": {name: found[0] for name, found in sweep.get("params", {}).items()},
        "sizes": {name: found[0] for name, found in sweep.get("sizes", {}).items()},
    }
    return {name: value for name, value in case.items() if value}
