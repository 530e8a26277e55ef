"""The command `import`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.bench import Dtypes, Sizes, options_named
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.job_output import wait_and_print
from warpcall._cli.output import Json, Url, print_json, write_lines
from warpcall._cli.sweep_args import dtypes_of, implementations_of, sizes_of
from warpcall._cli.uploads import described, errors_naming, job_names
from warpcall._imports import gpu_mode, kernelbench
from warpcall._imports.sources import FUNCTION, MOST_NAME, Imported
from warpcall._jobs.names import NAME
from warpcall.implementations import UploadedImplementation
from warpcall.jobs.request import JobRequest
from warpcall.problems import UploadedProblem

MOST_FILES = 64
MOST_STEM = 20  # characters of the name of an upload that follow that of its problem

app = typer.Typer()


@app.command("import")
@job_options(without=("name",))
def import_files(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="A problem of KernelBench (a file with Model, get_inputs and get_init_inputs), then "
            "files with ModelNew, unless the first has it; or the folder of a task of gpu-mode (with "
            "task.yml and reference.py), then files with custom_kernel. Default: its submission.py.",
        ),
    ],
    problem_name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the problem, 1 to 48 letters, digits, _, . and -. Default: that of the file "
            "or folder.",
        ),
    ] = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Also check and time what was imported.")
    ] = False,
    size: Sizes = None,
    dtype: Dtypes = None,
    vs: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="With --bench: what to compare with, such as torch,torch.compile,copy. Default: torch.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Import problems of KernelBench and gpu-mode.

    It makes a problem and uploads of files. They are read here, and run on the server only. The command says what it assumed. With
    --bench, the exit code is 1 if an implementation is wrong or has no time.

    \b
    warpcall import problem.py new.py --bench --size batch_size=16,dim=1024
    warpcall import tasks/vectoradd submission.py --bench
    """
    imported = read_files([Path(one) for one in files])
    if problem_name is not None:
        if not NAME.fullmatch(problem_name):
            raise UsageError(
                f"--name must be 1 to 48 letters, digits, _, . and -, got {problem_name!r:.80}"
            )
        imported = replace(imported, name=problem_name)
    chosen = JobRequest("local/problem", **options)
    implementations_of("local/problem", vs, [])  # refuses a wrong --vs before anything is uploaded
    axes: dict[str, Any] = {} if size is None else {"sizes": sizes_of(size)}
    if dtype is not None:
        axes["dtypes"] = dtypes_of(dtype)
    with Client(url) as gpu:
        problem, uploaded = _upload(gpu, imported, chosen.private)
        if not as_json:
            _print_uploaded(imported, problem, uploaded, is_timed=bench)
        if not bench:
            if as_json:
                print_json(
                    {
                        "problem": asdict(problem),
                        "implementations": [asdict(one) for one in uploaded],
                        "assumed": [*imported.assumed],
                    }
                )
            return
        mine = job_names(uploaded)
        chosen = replace(chosen, op=problem.name)
        names = implementations_of(problem.name, vs, mine)
        with options_named(problem.name, declaration_of(gpu, problem.name)):
            if imported.tests and mine and size is None and chosen.precision != "check":
                checked = replace(
                    chosen,
                    implementations=mine,
                    precision="check",
                    profile=None,
                    **_cases(imported.tests, axes),
                )
                wait_and_print(gpu.jobs.submit(checked), as_json=as_json)
            cases = imported.benchmarks or imported.tests
            wanted = _cases(cases, axes) if cases and size is None else {"sweep": axes}
            job = gpu.jobs.submit(replace(chosen, implementations=names, **wanted))
        wait_and_print(job, as_json=as_json)


def read_files(paths: Sequence[Path]) -> Imported:
    """What files say, which are a problem and implementations of it.

    Raises:
        UsageError: a file is missing or wrong.
    """
    first, *others = paths
    if len(others) > MOST_FILES:
        raise UsageError(f"import takes at most {MOST_FILES} implementations, got {len(others)}")
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: there is no such file")
    for path in others:
        if path.is_dir():
            raise UsageError(f"{path}: an implementation must be a file")
    folder = first.parent if first.name == gpu_mode.TASK else first
    if folder.is_dir():
        if not (folder / gpu_mode.TASK).is_file():
            raise UsageError(
                f"{first}: a folder must have the {gpu_mode.TASK} of a task of gpu-mode"
            )
        return gpu_mode.read_task(folder, others)
    return kernelbench.read_problem(first, others)


def _upload(
    gpu: Client, imported: Imported, private: bool | None
) -> tuple[UploadedProblem, list[UploadedImplementation]]:
    with errors_naming(imported.path, None):
        problem = gpu.problems.add(imported.source, name=imported.name, private=private)
    uploaded = []
    for one in imported.candidates:
        # Each task has a `submission.py`, and the name of an upload belongs to one op.
        name = f"{imported.name[: MOST_NAME - MOST_STEM - 1]}.{one.name[:MOST_STEM]}"
        with errors_naming(one.path, None):
            sent = gpu.implementations.add(
                problem.name, one.source, function=FUNCTION, name=name, private=private
            )
        uploaded.append(sent)
    return problem, uploaded


def _cases(cases: Sequence[Any], axes: dict[str, Any]) -> dict[str, Any]:
    """The cases of a job for these sizes, in each dtype that was chosen."""
    dtypes = [{"dtype": one} for one in axes.get("dtypes", ())] or [{}]
    return {"cases": [{"sizes": dict(sizes), **one} for sizes in cases for one in dtypes]}


def _print_uploaded(
    imported: Imported,
    problem: UploadedProblem,
    uploaded: Sequence[UploadedImplementation],
    *,
    is_timed: bool,
) -> None:
    lines = [f"{described(imported.path, problem)}: a problem"]
    for one, sent in zip(imported.candidates, uploaded, strict=True):
        lines.append(described(one.path, sent))
    lines += ["assumed:", *(f"  {line}" for line in imported.assumed)]
    if not is_timed:
        names = ",".join(["torch", *job_names(uploaded)])
        lines.append(f"to time it: warpcall bench {problem.name} --vs {names}, or --bench")
    write_lines(*lines)
