"""The command `evaluate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.bench import OpArguments, Sizes, options_named
from warpcall._cli.declarations import declaration_of
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.op_args import one_of
from warpcall._cli.output import Json, Url, console, table_of, write_lines
from warpcall._cli.sweep_args import sweep_of
from warpcall._cli.tables import interval, microseconds, ratio
from warpcall._cli.uploads import Upload, Verified, is_file, upload_of
from warpcall._jobs.source import Source, source_of
from warpcall._jobs.verified import verified_members
from warpcall._text import clean_json
from warpcall.errors import InvalidInput
from warpcall.evaluations import Evaluation
from warpcall.jobs import PRECISIONS

COLUMNS = ("file", "right", "time us", "ratio", "95 % CI", "verdict", "limit", "remarks")
MOST_REMARK = 300  # characters of a failure in the table; --json has all of it

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
@job_options(only=("private", "gpu", "node", "tags", "priority", "fresh"))
def evaluate(
    arguments: OpArguments = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="SHAPES", help="Shapes of the first input: 4096x4096,8192x8192."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPES", help="Dtypes of the first input: bf16,float32."),
    ] = None,
    size: Sizes = None,
    vs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What times are compared with. Default: warpcall, for a problem torch.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="PRECISION",
            help="Seconds for a candidate in a case: quick (2, the default), standard (10), publish "
            "(60); check times nothing.",
        ),
    ] = None,
    verified: Verified = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the sources on the server, as uploads.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Evaluate many candidates of one op.

    The arguments are FILES... OP, then options of the op. Each FILE[:FUNCTION] is a candidate, and so is a folder or a tarball. With --json a line of JSON is printed for each verdict, in the
    order in which they are known. The exit code is 0 if each candidate is right and was measured in
    each case, 1 if some was not, 2 for wrong usage.

    \b
    warpcall evaluate a.py b.py permute --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall evaluate --verified a.py b.cu permute --shape 4096x4096 --dtype bf16 --dims 1,0
    warpcall evaluate tries/*.py ann/row-norm --size rows=4096,columns=1000 --json
    """
    op, files, rest = split(arguments or [])
    chosen = one_of("--precision", precision or "quick", PRECISIONS)
    uploads = [upload_of(one) for one in files]
    members = [candidate(one, op, verified) for one in uploads]
    with Client(url) as gpu:
        declaration = declaration_of(gpu, op)
        sweep = sweep_of(declaration, rest, shape, dtype, size or [])
        known = {name: value for name, value in options.items() if value is not None}
        known |= {"precision": chosen, "verified": verified}
        found: dict[int, Evaluation] = {}
        with options_named(op, declaration, {"baseline": "--vs", "sources": "FILES"}):
            for one in gpu.evaluate_many(op, members, sweep=sweep, baseline=vs, keep=keep, **known):
                found[one.index] = one
                if as_json:
                    line = {"file": files[one.index], **one.to_dict()}
                    sys.stdout.write(clean_json(json.dumps(line, ensure_ascii=False)) + "\n")
                    sys.stdout.flush()
    if not as_json:
        print_verdicts(files, found)
    if not all(one.ok for one in found.values()):
        raise typer.Exit(1)


def split(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The op, the files, and the options of the op.

    Raises:
        UsageError: there is no file, or not one op.
    """
    ends = [number for number, one in enumerate(arguments) if one.startswith("--")]
    first = ends[0] if ends else len(arguments)
    files = [one for one in arguments[:first] if is_file(one)]
    others = [one for one in arguments[:first] if not is_file(one)]
    if len(others) != 1 or not files:
        raise UsageError(
            "evaluate needs files and one op, such as: warpcall evaluate a.py b.py permute; got "
            f"the files {', '.join(files) or 'none'} and {', '.join(others) or 'no op'}"
        )
    return others[0], files, [*arguments[first:]]


def candidate(upload: Upload, op: str, verified: bool) -> Source:
    """A file, a folder or a tarball as a candidate. One whose function is named has its name."""
    if not upload.path.exists():
        raise UsageError(f"{upload.path}: there is no such file")
    try:
        found = source_of(upload.path, function=upload.function, op=op)
        verified_members(found, verified, None, None)  # now, before anything is sent
    except InvalidInput as error:
        raise UsageError(error.detail) from None
    return found if upload.function is None else replace(found, name=None)


def print_verdicts(files: Sequence[str], found: Mapping[int, Evaluation]) -> None:
    """A row for each candidate, the fastest first, then those without a ratio."""
    rows = sorted(found.values(), key=lambda one: (one.ratio is None, one.ratio or 0.0, one.index))
    console().print(table_of(COLUMNS, [_row(files[one.index], one) for one in rows]))
    if rows:
        write_lines(
            f"ratio and verdict: to {rows[0].baseline}, above 1 takes longer; of several cases the "
            "geometric mean"
        )


def _row(file: str, one: Evaluation) -> tuple[str, ...]:
    right = {True: "right", False: "wrong", None: "unknown"}[one.right]
    if one.failure is not None:
        right = one.failure.kind
        remark = " ".join(one.failure.text.split())
        remark = remark if len(remark) <= MOST_REMARK else f"{remark[:MOST_REMARK]} (more: --json)"
    else:
        remark = one.why or ", ".join(one.marks)
    return (
        file,
        right,
        microseconds(one.time_us) if one.time_us is not None else "",
        ratio(one.ratio) if one.ratio is not None else "",
        interval(ratio, one.ratio_low, one.ratio_high) if one.ratio is not None else "",
        one.verdict or "",
        "" if one.share_of_limit is None else f"{one.share_of_limit:.0%}",
        remark,
    )
