"""The command `check`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.files import UsageError
from warpcall._cli.job_options import job_options
from warpcall._cli.job_output import wait_and_print
from warpcall._cli.output import Json, Url, op_names, write_lines
from warpcall._cli.uploads import Launches, Verified, described, job_names, verified_uploads
from warpcall._jobs.names import without_version
from warpcall.jobs.request import JobRequest

app = typer.Typer()


@app.command()
@job_options(only=("private", "gpu", "node"), before="fresh")
def check(
    op: Annotated[
        str,
        typer.Argument(
            autocompletion=op_names,
            help="Name of the op, such as permute, or of a problem, such as ann/row-norm.",
        ),
    ],
    mine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:FUNCTION]",
            help="Upload this file, and check its function; default: the one with the op's name. Or a "
            "folder or a tarball of files: DIR[:MODULE.FUNCTION]. Can be repeated.",
        ),
    ] = None,
    verified: Verified = False,
    launches: Launches = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Check again what you have checked before.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    **options: Any,
) -> None:
    """Compare your kernel with the reference in odd cases.

    These are all dtypes of the op, layouts, NaN and infinities, empty tensors, one element, odd sizes and
    long rows. Nothing is timed. Without a GPU, Triton interprets the kernel; what only a GPU can run
    is not checked. The exit code is 1 if a result is wrong or missing, or if none of an upload could
    be checked.

    \b
    warpcall check permute --mine my_permute.py
    warpcall check ann/row-norm --mine fast.py
    """
    if not mine:
        raise UsageError("check needs a file: --mine my_kernel.py")
    uploads = verified_uploads(mine, verified=verified, launches=launches)
    with Client(url) as gpu:
        private = options["private"]
        found = [upload.send(gpu, without_version(op), private=private) for upload in uploads]
        if not as_json:
            write_lines(
                *(described(one.path, sent) for one, sent in zip(uploads, found, strict=True))
            )
        request = JobRequest(
            op,
            implementations=job_names(found),
            precision="check",
            fresh=fresh,
            **options,
        )
        wait_and_print(gpu.jobs.submit(request), as_json=as_json)
