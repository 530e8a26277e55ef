"""The command `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.groups import (
    gpus_of,
    print_group_detached,
    print_group_preview,
    wait_and_print_group,
)
from warpcall._cli.job_options import flag_of, job_options
from warpcall._cli.job_output import print_detached, print_preview, wait_and_print
from warpcall._cli.output import Json, Url, op_names, write_lines
from warpcall._cli.profile_args import (
    Kernels,
    Launch,
    Metrics,
    Sections,
    flag_of_option,
    profile_options_of,
)
from warpcall._cli.sweep_args import implementations_of, sweep_of
from warpcall._cli.uploads import Launches, Verified, described, job_names, verified_uploads
from warpcall._jobs.names import is_problem, without_version
from warpcall.errors import InvalidInput
from warpcall.jobs.request import JobRequest

OF_CASES = {  # the option for each field that an error of the server can name, beside a job's own
    "implementations": "--vs",
    "gpus": "--gpu",
    "sweep": "--shape, --dtype",
    "case": "--shape, --dtype",
}
OF_PROBLEMS = {**OF_CASES, "sweep": "--size, --dtype", "case": "--size, --dtype"}

OpArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OPTIONS OF THE OP]",
        help="Parameters such as --dims 1,0. Repeat one with another value for more cases.",
    ),
]

Shapes = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPES",
        help="Shapes of the first input: 4096x4096,8192x8192. Not for problems.",
    ),
]
Dtypes = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPES",
        help="Dtypes of the first input: bf16,float32. Default for a problem: its first.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=N,N",
        help="Sizes that no shape determines: taps=3,7, or rows=4096,columns=1000,1024. Can be "
        "repeated.",
    ),
]

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
@job_options(before="detach")
def bench(
    context: typer.Context,
    op: Annotated[
        str,
        typer.Argument(
            autocompletion=op_names,
            help="Name of the op, such as permute, or of a problem, such as ann/row-norm or "
            "ann/row-norm@3f2a91c0. `warpcall ops OP` lists its options.",
        ),
    ],
    arguments: OpArguments = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    mine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:FUNCTION]",
            help="Upload this file, and time its function; default: the one with the op's name. Or a "
            "folder or a tarball of files: DIR[:MODULE.FUNCTION]. Can be repeated.",
        ),
    ] = None,
    vs: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What to compare with: torch, torch.compile, copy (a plain copy of the same "
            "bytes), uploads such as ann/my_permute, and others that `warpcall implementations "
            "list` shows. Ratios are to the first with --mine, and otherwise to warpcall (of a "
            "problem: to torch), which is always timed then. Default: torch, with --mine "
            "warpcall,torch (of a problem: torch).",
        ),
    ] = None,
    size: Sizes = None,
    verified: Verified = False,
    launches: Launches = None,
    profile_kernels: Kernels = None,
    profile_launch: Launch = None,
    profile_sections: Sections = None,
    profile_metrics: Metrics = None,
    check_only: Annotated[
        bool,
        typer.Option(
            "--check-only",
            help="As --precision check: compare the results of these cases with the reference, and "
            "time nothing. With --mine, only uploads are checked by default.",
        ),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the results.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Submit no job: show its cases, time and memory. --mine uploads nevertheless.",
        ),
    ] = False,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Time an op against other implementations.

    --shape and --dtype are required, but not of a problem. The job waits in the queue of the server's devices. Times come
    with confidence intervals and verdicts. The exit code is 1 if the job does not succeed, or if an
    implementation has no time because it raised an error or its result is wrong, or if compute-sanitizer
    found an error.

    --gpu H100,H200 asks the same of several models at once, at most 8: a job for each, one table and one page with a column
    for each. A model that no server has is not waited for; its job begins when there is one.

    \b
    warpcall bench permute --shape 4096x4096,8192x8192 --dtype bf16,fp32 --dims 1,0 --vs torch,copy
    warpcall bench permute --mine my_permute.py --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall bench permute --shape 4096x4096 --dtype bf16 --dims 1,0 --gpu H100,H200
    warpcall bench ann/row-norm --mine fast.py --size rows=4096,columns=1000,1024 --dtype bf16
    """
    options["profile_options"] = profile_options_of(
        *(options["profile"], profile_kernels, profile_launch, profile_sections, profile_metrics)
    )
    gpus = gpus_of(options["gpu"])
    options["gpu"] = gpus[0] if len(gpus) == 1 else None
    chosen = JobRequest(op, **(options | ({"precision": "check"} if check_only else {})))
    if (verified or launches) and not mine:
        raise UsageError("--verified and --launches need a file: --mine my_kernel.py")
    uploads = verified_uploads(mine or (), verified=verified, launches=launches)
    implementations_of(op, vs, [])  # refuses a wrong --vs before anything is uploaded
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        check_options(context, declaration)
        sweep = sweep_of(declaration, arguments or [], shape, dtype, size or [])
        name = without_version(op)
        found = [upload.send(gpu, name, private=chosen.private) for upload in uploads]
        names = job_names(found)
        if not (names and chosen.precision == "check" and vs is None):
            names = implementations_of(op, vs, names)
        if not as_json:
            write_lines(
                *(described(one.path, sent) for one, sent in zip(uploads, found, strict=True))
            )
        request = replace(chosen, implementations=names, sweep=sweep)
        with options_named(op, declaration):
            if dry_run and len(gpus) > 1:
                print_group_preview(gpu.jobs.preview(request), gpus, as_json=as_json)
                return
            if dry_run:
                print_preview(gpu.jobs.preview(request), as_json=as_json)
                return
            if len(gpus) > 1:
                group = gpu.jobs.submit_group(request, gpus=gpus)
            else:
                job = gpu.jobs.submit(request)
        if len(gpus) > 1:
            if detach:
                print_group_detached(group, as_json=as_json)
            else:
                wait_and_print_group(group, as_json=as_json)
        elif detach:
            print_detached(job, as_json=as_json)
        else:
            wait_and_print(job, as_json=as_json)


def check_options(context: typer.Context, declaration: Mapping[str, Any]) -> None:
    """Raise UsageError if an option was given that is also the name of a parameter.

    The author of a problem may call a parameter like an option of this command, which would then
    take the value in its place.
    """
    params = {p["name"].replace("_", "-") for p in declaration["params"]}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        for flag in option.opts:
            if source and source.name == "COMMANDLINE" and flag.removeprefix("--") in params:
                raise UsageError(
                    f"{flag} is an option of {context.info_name} and a parameter of {declaration['name']}: "
                    "give the parameter from Python"
                )


@contextmanager
def options_named(
    op: str, declaration: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Raise errors of the server as usage errors that name the option at fault, not the field.

    Args:
        op: name of the op or problem.
        declaration: of the op. Each of its parameters is an option.
        more: the option for each field that only one command has.
    """
    options = {**(OF_PROBLEMS if is_problem(op) else OF_CASES), **(more or {})}
    params = {p["name"] for p in declaration["params"]}
    try:
        yield
    except InvalidInput as error:
        whole = (error.field or "").removeprefix("job.")  # the job of a monitor
        field, _, rest = whole.partition(".")
        if rest in params:
            known: str | None = f"--{rest.replace('_', '-')}"
        elif "sizes" in whole.split("."):
            known = "--size"
        elif field == "profile_options" and rest:
            known = flag_of_option(rest.partition(".")[0])
        else:
            known = options.get(field) or flag_of(field)
        if known is None:
            raise
        detail = error.detail.removeprefix("job.").removeprefix(f"{field}: ")
        detail = detail.removeprefix(f"{whole}: ")
        raise UsageError(f"{known}: {detail}") from None
