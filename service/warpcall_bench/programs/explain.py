"""Makes compile reports: python -m warpcall_bench.programs.explain. Code of users is in the sandbox.

It gets an `ExplainRequest` as a frame, calls the implementation once, and has each launch of a Triton
kernel compiled for the architecture instead. It answers with one frame:

- `case`, the key of the case; `kernels`, what was launched, with texts as base64 of zlib;
  `failures`, configurations of autotuners that cannot be compiled; `stopped`, why the function did
  not run to its end although it had launched kernels, otherwise empty; `triton` and `ptxas`, versions;
- or `error`, a sentence that names the line, and `field`, the part of the request at fault.

Shipped ops are called on the device "meta". Code of users is called on tensors of the CPU, which have
the values of the case. Nothing computes outputs, so what depends on them is not what it would be.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import compile_only, source_check
from warpcall_bench.programs.setup_function import setup_of
from warpcall_bench.programs.source_check import Answers, Refused, described, text
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import ExplainRequest
    from warpcall_bench.runs.trees import Written
    from warpcall_kernels import Op
    from warpcall_kernels.compile.launches import LaunchedKernel, LaunchRecorder
    from warpcall_kernels.measuring import JobCase

PLACE = re.compile(r"^(\S+, )?line \d+: ")  # as `Written.place` has it
RELEASE = re.compile(r"release ([\d.]+)")


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check)


def _check(request: ExplainRequest, folder: Path, answers: Answers) -> dict[str, Any]:
    """Make a compile report."""
    compile_only.prepare(folder)
    with quick_imports():
        import torch

        from warpcall_bench.programs import problem_source
        from warpcall_kernels import InvalidInput
        from warpcall_kernels.compile.architectures import architecture
        from warpcall_kernels.compile.first_launch import skip_hash
        from warpcall_kernels.compile.launches import LaunchRecorder
        from warpcall_kernels.compile.pretended import pretending
        from warpcall_kernels.measuring import make_case
    torch.set_num_threads(1)
    skip_hash()  # the cache is in `folder`, for this report only
    tree = request["tree"]
    written = None
    if tree is not None:
        written = source_check.write_source(tree, folder, f"{request['function']}.py")
    with source_check.limited(request["limit_s"], written, answers, "the compile report", folder):
        try:
            target = architecture(request["gpu"])
            op = problem_source.requested_op(request["op"], request["problem"], folder)
            case = make_case(op, request["case"])
        except InvalidInput as error:
            named = error.argument in ("op", "gpu")
            field = error.argument if named else f"case.{error.argument}"
            raise Refused(str(error), field) from None
        if written is not None:
            _check_memory(case, request["memory_bytes"])
        recorder = LaunchRecorder(target)
        with recorder.recording():
            if written is None:
                stopped = _call_op(op, case)
            else:
                with pretending(target):
                    module = source_check.import_source(written)
                    stopped = _call(module, request["function"], case, recorder, written)
        return {
            "case": case.key,
            "kernels": [_kernel(one) for one in recorder.kernels()],
            "failures": [text(one) for one in recorder.failures],
            "stopped": text(stopped),
            **versions(target.capability),
        }


def _check_memory(case: JobCase, most_bytes: int) -> None:
    nbytes = sum(meta.nbytes for metas in (case.metas, case.outputs) for meta in metas.values())
    if nbytes > most_bytes:
        raise Refused(
            f"inputs and outputs may have at most {most_bytes} bytes in a compile report, "
            f"those of {case.key} have {nbytes}",
            "case",
        )


def _call_op(op: Op, case: JobCase) -> str:
    """Call a shipped op on tensors without memory."""
    import triton

    triton.knobs.runtime.interpret = True  # so that launchers call their kernels for "meta" tensors
    op.function(**{name: sample.meta() for name, sample in case.inputs.items()}, **case.params)
    return ""


def _call(module: Any, name: str, case: JobCase, recorder: LaunchRecorder, written: Written) -> str:
    """Call the function of a source, and return why it did not run to its end; empty if it did.

    Raises:
        Refused: there is no such function, or it launched nothing before it raised an exception.
    """
    import torch

    from warpcall_kernels.execution.setup import set_up_at_first_call

    function = getattr(module, name, None)
    if not callable(function):
        raise Refused(f"it has no function {name}", "function")
    generator = torch.Generator().manual_seed(0)
    tensors = {input_: sample.draw(generator) for input_, sample in case.inputs.items()}
    try:
        set_up_at_first_call(function, setup_of(module, function), case.params)(**tensors)
    except BaseException as error:  # noqa: BLE001  # code of users may raise anything
        message = described(error, written)
        if recorder.error_line is not None and (place := written.place(*recorder.error_line)):
            message = f"{place}{PLACE.sub('', message)}"
        if not len(recorder):
            raise Refused(message) from None
        return message
    return ""


def _kernel(kernel: LaunchedKernel) -> dict[str, Any]:
    texts = {
        name: {"packed": _packed(one.text), "nbytes": one.nbytes}
        for name, one in kernel.texts.items()
    }
    return {**numbers(kernel), "texts": texts}


def numbers(kernel: LaunchedKernel) -> dict[str, Any]:
    """A kernel as `warpcall.compile_reports.KernelReport` has it, without its texts."""
    needs, fits = kernel.resources, kernel.occupancy
    return {
        "name": text(kernel.name),
        "config": text(kernel.config),
        "launches": kernel.launches,
        "grid": list(kernel.grid),
        "arguments": {text(name): text(value) for name, value in kernel.arguments.items()},
        "constants": {text(name): text(value) for name, value in kernel.constants.items()},
        "registers": needs.registers,
        "spill_store_bytes": needs.spill_store_bytes,
        "spill_load_bytes": needs.spill_load_bytes,
        "stack_bytes": needs.stack_bytes,
        "static_shared_bytes": needs.static_shared_bytes,
        "dynamic_shared_bytes": kernel.shared_bytes - needs.static_shared_bytes,
        "warps": kernel.warps,
        "stages": kernel.stages,
        "ctas": kernel.ctas,
        "resident_blocks": fits.blocks,
        "resident_warps": fits.warps,
        "max_warps": fits.max_warps,
        "limited_by": fits.limited_by,
    }


def versions(capability: int) -> Mapping[str, str]:
    """The versions of Triton and of NVIDIA's assembler."""
    import triton
    from triton.backends.nvidia.compiler import get_ptxas_version

    release = RELEASE.search(get_ptxas_version(capability))
    return {"triton": triton.__version__, "ptxas": release[1] if release else "unknown"}


def _packed(whole: str) -> str:
    return base64.b64encode(zlib.compress(whole.encode(), 6)).decode()


if __name__ == "__main__":
    main()
