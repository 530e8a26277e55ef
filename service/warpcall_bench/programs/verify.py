"""Records launch plans for a verification: python -m warpcall_bench.programs.verify, in the sandbox.

It gets a `VerifyRequest` as a frame, and does for each case what the recorder of a verified job does
(`programs.record_main`). It answers with one frame:

- `cases`, each with its `key`, `spec` and `outputs`, and either the `plan` or the `reason` why there is
  none; `declaration`, the launches of all cases as one declaration, or null; `remarks` on it;
  `compiler`, its name and version;
- or `error`, a sentence that names the line, and `field`, the part of the request at fault.

The source can answer in the name of this process, so `programs.plan_check` checks all of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import compile_only, source_check
from warpcall_bench.programs.setup_function import refused_setup, setup_of
from warpcall_bench.programs.source_check import Answers, Refused, described, text
from warpcall_bench.runs import trees
from warpcall_bench.runs.messages import MAX_REASON_CHARS
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import VerifyRequest
    from warpcall_bench.runs.trees import Written
    from warpcall_kernels import Op
    from warpcall_kernels.compile.architectures import Architecture
    from warpcall_kernels.execution.record_server import Recorded
    from warpcall_kernels.measuring import JobCase


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check)


def _check(request: VerifyRequest, folder: Path, answers: Answers) -> dict[str, Any]:
    """Record the launch plan of each case."""
    compile_only.prepare(folder)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # without a sandbox it would see the GPUs
    with quick_imports():
        import torch

        from warpcall_bench.programs import problem_source
        from warpcall_kernels import InvalidInput
        from warpcall_kernels.compile.architectures import architecture
        from warpcall_kernels.compile.first_launch import skip_hash
        from warpcall_kernels.execution import record_server  # noqa: F401  # now: its time does not count
        from warpcall_kernels.measuring import make_case
    torch.set_num_threads(1)
    skip_hash()  # the cache is in `folder`
    python = request["language"] == "python"
    name = f"{request['function']}{'.py' if python else '.cu'}"
    if python:
        written = source_check.write_source(request, folder, name)
    else:
        written = trees.write(request, folder, name)
        source_check.drop_output()
    with source_check.limited(request["limit_s"], written, answers, "the verification", folder):
        field = "op"
        try:
            target = architecture(request["gpu"])
            op = problem_source.requested_op(request["op"], request["problem"], folder)
            cases: list[JobCase] = []
            for number, spec in enumerate(request["cases"]):
                field = f"cases.{number}"
                cases.append(make_case(op, spec))
        except InvalidInput as error:
            named = error.argument in ("op", "gpu")
            where = error.argument if named else f"{field}.{error.argument}"
            raise Refused(str(error), where) from None
        recorded = _loaded(request, op, written, target)
        return _recorded(recorded, cases, target, written)


def _loaded(request: VerifyRequest, op: Op, written: Written, target: Architecture) -> Recorded:
    """Import a source as the recorder of a job does; one in CUDA C++ is only passed on."""
    from warpcall_bench.programs.upload_check import function_of
    from warpcall_kernels.compile.pretended import pretending
    from warpcall_kernels.execution.record_server import Recorded
    from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration
    from warpcall_kernels.verified.launched import use_driver

    language, launches = request["language"], request["launches"]
    if launches is not None:
        try:
            Declaration.from_json(launches)
        except InvalidDeclaration as error:
            raise Refused(str(error), "launches") from None
    if language == "cuda":
        return Recorded(
            language=language,
            source=request["source"],
            folders=written.folders,
            declaration=launches,
            optional=[one.name for one in op.inputs if one.optional],
        )
    use_driver(target)
    with pretending(target):
        module = source_check.import_source(written)
    function = function_of(module, request["function"])
    if setup_of(module, function) is not None:
        raise Refused(refused_setup(request["function"]), "function")
    return Recorded(function=function, module=module, declaration=launches)


def _recorded(
    recorded: Recorded, cases: list[JobCase], target: Architecture, written: Written
) -> dict[str, Any]:
    """The answer, with a plan or a reason for each case."""
    from warpcall_kernels.execution.inputs import layout_of
    from warpcall_kernels.execution.record_server import recording_of
    from warpcall_kernels.execution.spec import CODES
    from warpcall_kernels.verified.proposal import propose

    found = []
    recordings = []
    for case in cases:
        one: dict[str, Any] = {
            "key": case.key,
            "spec": case.spec,
            "outputs": {n: [list(m.shape), CODES[m.dtype]] for n, m in case.outputs.items()},
        }
        layouts = {name: layout_of(sample) for name, sample in case.inputs.items()}
        try:
            plan, recording = recording_of(recorded, layouts, case.params, case.outputs, target)
        except BaseException as error:  # noqa: BLE001  # code of users may raise anything
            one["reason"] = text(_reason(error, written), MAX_REASON_CHARS)
        else:
            one["plan"] = plan.to_json()
            recordings += [recording] if recording is not None else []
        found.append(one)
    proposal = propose(recordings) if recordings else {"declaration": None, "remarks": []}
    return {"cases": found, **proposal, "compiler": _compiler(recorded)}


def _reason(error: BaseException, written: Written) -> str:
    """Why there is no plan, with the line of the source if it is known."""
    from warpcall_kernels.verified.nvrtc import CudaCompileError
    from warpcall_kernels.verified.record import CannotCompile, NotVerifiable

    known = isinstance(error, CannotCompile | CudaCompileError | NotVerifiable)
    return str(error) if known else described(error, written)


def _compiler(recorded: Recorded) -> str:
    if recorded.language == "cuda":
        from warpcall_kernels.verified.nvrtc import CudaCompileError, compiler

        try:
            return compiler()
        except CudaCompileError:  # as the reason of each case says
            return "no NVRTC"
    import triton

    return f"Triton {triton.__version__}"


if __name__ == "__main__":
    main()
