"""The command `verify`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.bench import OpArguments, Shapes, Sizes, options_named
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.op_args import one_of
from warpcall._cli.output import Json, OpName, Url, print_json, write_lines
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.uploads import GpuName, Launches, errors_naming, verified_uploads
from warpcall._explain.gpus import architecture_of
from warpcall._verify.lines import declaration_lines, verification_lines
from warpcall.compile_reports import ARCHITECTURES, GPU
from warpcall.errors import InvalidInput

OF_SOURCE = ("source", "function", "launches", "language", "entry", "files")
AXES = {"shapes": "shape", "dtypes": "dtype"}  # of a sweep, and their names in a case

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
def verify(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:FUNCTION]",
            help="File in Python with Triton kernels, or in CUDA C++ (.cu), and the function in it; "
            "default: the one with the op's name. Or a folder or a tarball: DIR[:MODULE.FUNCTION].",
        ),
    ],
    op: OpName,
    arguments: OpArguments = None,
    shape: Shapes = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPES",
            help="Dtypes of the first input: bf16,float32. Default for a problem: its first.",
        ),
    ] = None,
    size: Sizes = None,
    gpu_name: GpuName = GPU,
    launches: Launches = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Say whether a kernel can be timed as a verified one.

    The server compiles its kernels, and describes what one call of each case launches, fills and copies. It checks
    this as a job with --verified would, and needs no GPU for it. A declaration of the launches is
    printed, too. The exit code is 1 if a case cannot be verified.

    \b
    warpcall verify my_permute.py permute --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall verify my_conv.cu conv --shape 8x256x4096 --dtype bf16 --size taps=7 --gpu h100
    """
    try:
        architecture = one_of("--gpu", architecture_of(gpu_name, "--gpu"), ARCHITECTURES)
    except InvalidInput as error:
        raise UsageError(error.detail) from None
    (upload,) = verified_uploads([file], verified=True, launches=launches)
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        cases = cases_of(sweep_of(declaration, arguments or [], shape, dtype, size or []))
        with options_named(op, declaration, {"cases": "--shape, --dtype"}):
            try:
                found = gpu.verify(
                    op,
                    cases,
                    upload.path,
                    function=upload.function,
                    launches=upload.launches,
                    gpu=architecture,
                )
            except InvalidInput as error:
                if error.field not in OF_SOURCE:
                    raise
                with errors_naming(upload.path, None):
                    raise
    if as_json:
        print_json(found.to_dict())
    else:
        write_lines(*verification_lines(found, file))
        write_lines(*declaration_lines(found), wrap=False)
    if not found.verifiable:
        raise typer.Exit(1)


def cases_of(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cases of a sweep, each as a job writes one."""
    axes = [(AXES[name], sweep[name]) for name in AXES if name in sweep]
    for group in ("params", "sizes"):
        axes += [(f"{group}.{name}", values) for name, values in sweep.get(group, {}).items()]
    cases = []
    for chosen in itertools.product(*(values for _, values in axes)):
        case: dict[str, Any] = {}
        for (path, _), value in zip(axes, chosen, strict=True):
            group, _, name = path.partition(".")
            if name:
                case.setdefault(group, {})[name] = value
            else:
                case[group] = value
        cases.append(case)
    return cases
