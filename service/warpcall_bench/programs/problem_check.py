"""Checks a problem: python -m warpcall_bench.programs.problem_check, in the sandbox, without a GPU.

It gets a `ProblemRequest` as a frame and answers with one frame:

- without `job`, the check of an upload: `doc`, the first line of the module's docstring, `function`,
  the name of the reference (empty if it is no ASCII identifier), and `declaration`, the op as in
  `GET /v1/kernels/{name}` with `sizes` and `dtypes`;
- with `job`: `cases`, each with `spec`, `key` and `device_bytes`;
- if something is wrong: `error`, a sentence that names the line, and `field`: "source" if the problem
  cannot be used, or as in jobs on shipped ops, such as "dtypes" or "cases.0.sizes.rows".

The reference runs only on the device "meta", so that the sizes of tensors do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import source_check
from warpcall_bench.programs.source_check import Answers, Refused
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import ProblemRequest
    from warpcall_kernels import Op

MAX_NAME_CHARS = 64


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check)


def _check(request: ProblemRequest, folder: Path, answers: Answers) -> dict[str, Any]:
    """Check a problem, or cases of a job on it."""
    with quick_imports():  # of torch and Triton, whose time does not count as the source's
        import torch

        from warpcall.errors import InvalidInput
        from warpcall_bench.programs import problem_source
        from warpcall_bench.programs.case_check import check_cases
        from warpcall_kernels import InvalidInput as RefusedByOp
        from warpcall_kernels import measuring
        from warpcall_service.devices.tensors import describe

    name = problem_source.file_name(request["name"])
    written = source_check.write_source({"source": request["source"]}, folder, name)
    with quick_imports():
        _ = torch.empty(1, device="meta") + 1  # the first such call imports for a second
    with source_check.limited(request["limit_s"], written, answers, "the problem's code", folder):
        module = source_check.import_source(written)
        try:
            op = problem_source.op_of(module, request["name"], written.file)
        except RefusedByOp as error:
            raise Refused(str(error)) from None
        job = request["job"]
        if job is None:
            return _declaration(op, describe(op, measuring.CODES))
        try:
            return {"cases": check_cases(op, job, job["device"], job["memory_bytes"])}
        except InvalidInput as refused:
            raise Refused(refused.detail, refused.field or "cases") from None
        except RefusedByOp as error:  # of the whole sweep
            raise Refused(str(error), error.argument) from None


def _declaration(op: Op, described: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: source_check.text(described[name]) for name in ("summary", "description")}
    function = getattr(op.reference, "__name__", "")
    known = isinstance(function, str) and function.isidentifier() and function.isascii()
    return {
        "doc": texts["summary"],
        "function": function[:MAX_NAME_CHARS] if known else "",
        "declaration": {**described, **texts},
    }


if __name__ == "__main__":
    main()
