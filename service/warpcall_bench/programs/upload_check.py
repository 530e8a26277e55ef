"""Checks an uploaded source: python -m warpcall_bench.programs.upload_check, in the sandbox.

It compiles and imports the source, and checks that the function takes the inputs and parameters of
its op by name. It calls nothing and has no GPU. What the source asks about the GPU while it is imported
is answered for the architecture of the request (`warpcall_kernels.compile.pretended`). CUDA C++ is
compiled, and its kernels are inspected. A declaration of launches is parsed; whether it fits a case is
known when a job records the case.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import source_check
from warpcall_bench.programs.setup_function import (
    SETUP,
    STATE,
    needs_setup,
    refused_setup,
    setup_of,
)
from warpcall_bench.programs.source_check import Answers, Refused
from warpcall_bench.runs import trees
from warpcall_bench.runs.messages import CheckRequest
from warpcall_bench.runs.trees import Written
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_kernels.verified.declaration import Declaration

DECLARATION = "warpcall_kernels.verified.declaration"
DECLARED = "__warpcall_launches__"  # of a function: what the decorator `warpcall.launches` declares
KERNEL_IN_CUDA = "__global__"
NOT_PYTHON = (
    "it is no Python: it looks like CUDA C++, whose kernels are uploaded as verified ones, with a "
    "declaration of their launches. Name the file *.cu and use `warpcall bench ... --mine FILE.cu`, or "
    'send "verified": true, "language": "cuda" and "launches"; docs/verified-kernels.md describes it'
)
MAX_NAMES = 12  # functions that an error lists
SLOW_PACKAGES = ("torch", "triton")  # importing them takes seconds


def main() -> None:
    """Answer one request."""
    source_check.answer_one(check)


def check(request: CheckRequest, folder: Path, answers: Answers) -> dict[str, str]:
    """Check a source, and answer with the first line of the function's docstring."""
    verified = request["verified"]
    if verified is not None and verified["language"] == "cuda":
        return _check_cuda(request, verified["launches"], folder, answers)
    try:
        written = source_check.write_source(request, folder, f"{request['function']}.py")
    except Refused as refusal:
        if KERNEL_IN_CUDA in request["source"]:
            raise Refused(NOT_PYTHON) from None
        raise refusal from None
    with quick_imports():
        if verified is not None:
            importlib.import_module(DECLARATION)
        for package in SLOW_PACKAGES:
            if trees.mentions(request, package):
                importlib.import_module(package)  # now, so that its time does not count
        seeing = _seeing_gpu(request)
    with source_check.limited(request["limit_s"], written, answers, "the import", folder):
        with seeing:
            module = source_check.import_source(written)
        function = function_of(module, request["function"])
        setup = _setup_of(module, function, request)
        _check_signature(function, request, written, more=() if setup is None else (STATE,))
        if setup is not None:
            _check_signature(setup, request, written, name=SETUP)
        if verified is not None:
            _check_declarations(function, verified["launches"])
        doc = inspect.getdoc(function) or ""
    return {"doc": source_check.text(doc.strip().partition("\n")[0])}


def _seeing_gpu(request: CheckRequest) -> contextlib.AbstractContextManager[None]:
    """A context in which a source sees a GPU of the architecture of jobs; none if it is empty."""
    gpu = request["gpu"]
    if not gpu or not any(trees.mentions(request, package) for package in SLOW_PACKAGES):
        return contextlib.nullcontext()
    from warpcall_kernels.compile.architectures import ARCHITECTURES
    from warpcall_kernels.compile.pretended import pretending

    target = ARCHITECTURES.get(gpu)
    if target is None:  # a GPU that nothing is known of
        return contextlib.nullcontext()
    if trees.mentions(request, "triton"):
        from warpcall_kernels.verified.launched import use_driver

        use_driver(target)
    return pretending(target)


def _check_cuda(
    request: CheckRequest, launches: object, folder: Path, answers: Answers
) -> dict[str, str]:
    """Compile CUDA C++, and check the declaration of its launches."""
    written = trees.write(request, folder, f"{request['function']}.cu")
    with quick_imports():
        from warpcall_kernels.compile.architectures import architecture
        from warpcall_kernels.verified import inspection
        from warpcall_kernels.verified.cuda import CudaCompileError, check_source
        from warpcall_kernels.verified.declaration import InvalidDeclaration
    with source_check.limited(request["limit_s"], written, answers, "the compilation", folder):
        declaration = _declaration(launches, "launches", cuda=True)
        try:
            check_source(
                request["source"], declaration, architecture(request["gpu"]), written.folders
            )
        except (CudaCompileError, inspection.Refused) as error:
            raise Refused(str(error)) from None
        except InvalidDeclaration as error:
            raise Refused(f"the declaration of its launches: {error}", "launches") from None
    return {"doc": ""}


def _check_declarations(function: Any, launches: object) -> None:
    """Check the declaration of launches that came beside a source, or that of a decorator in it."""
    if launches is not None:
        _declaration(launches, "launches", cuda=False)
    elif (declared := getattr(function, DECLARED, None)) is not None:
        _declaration(declared, "source", cuda=False)


def _declaration(launches: object, field: str, *, cuda: bool) -> Declaration:
    from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration

    try:
        found = Declaration.from_json(launches)
    except InvalidDeclaration as error:
        raise Refused(f"the declaration of its launches: {error}", field) from None
    if found.for_cuda != cuda:
        kinds = ("CUDA C++", "Triton") if cuda else ("Triton", "CUDA C++")
        raise Refused(
            "the declaration of its launches must be that of kernels in {}, it is that of kernels in "
            "{}".format(*kinds),
            field,
        )
    return found


def function_of(module: ModuleType, name: str) -> Any:
    """The function to time.

    Raises:
        Refused: there is none of that name, or it is a Triton kernel or a class.
    """
    found = vars(module).get(name)
    if name not in vars(module):
        others = [
            other
            for other, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        known = ", ".join(others[:MAX_NAMES]) or "none"
        raise Refused(f"it has no function {name}, its functions are: {known}", "function")
    triton_jit = sys.modules.get("triton.runtime.jit")  # absent if the source does not use it
    if triton_jit is not None and isinstance(found, triton_jit.KernelInterface):
        raise Refused(f"{name} is a Triton kernel: name the function that launches it", "function")
    if not callable(found) or isinstance(found, type):
        kind = "a class" if isinstance(found, type) else f"a value of type {type(found).__name__}"
        raise Refused(f"{name} must be a function, it is {kind}", "function")
    return found


def _setup_of(module: ModuleType, function: Any, request: CheckRequest) -> Any:
    """The function `setup` of a source whose timed function takes `state`; None without one.

    Raises:
        Refused: the source has none although the function needs one, or may not have one.
    """
    name, setup = request["function"], setup_of(module, function)
    if setup is None:
        if needs_setup(function) and STATE not in _names_of(request):
            raise Refused(
                f"{name} takes {STATE}, which a function {SETUP} of the same file must return: it "
                f"has no function {SETUP}",
                "function",
            )
        return None
    if STATE in _names_of(request):
        raise Refused(
            f"{request['op']} has an input or a parameter {STATE}, so that {name} cannot have a "
            f"{SETUP}: rename the function {SETUP} of the file",
            "function",
        )
    if request["verified"] is not None:
        raise Refused(refused_setup(name), "function")
    return setup


def _names_of(request: CheckRequest) -> list[str]:
    return [*request["inputs"], *request["optional_inputs"], *request["params"]]


def _check_signature(
    function: Any,
    request: CheckRequest,
    written: Written,
    *,
    name: str = "",
    more: Sequence[str] = (),
) -> None:
    """Raise Refused unless the function takes required inputs and all parameters by name.

    Args:
        name: of the function; empty for the one that is timed.
        more: what it must take beside these.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as of a function in C, which has none
        return
    needed = [*request["inputs"], *request["params"], *more]
    try:
        signature.bind(**dict.fromkeys(needed))
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = "" if code is None else written.place(code.co_filename, code.co_firstlineno)
        optional = request["optional_inputs"]
        more = f", and may take {', '.join(optional)}" if optional else ""
        raise Refused(
            f"{where}{name or request['function']} must take the inputs and parameters of "
            f"{request['op']} by name: {', '.join(needed)}{more}; it takes "
            f"{_taken(signature.parameters)}: {error}",
            "function",
        ) from None


def _taken(parameters: Mapping[str, inspect.Parameter]) -> str:
    names: Sequence[str] = [
        f"{name} only by position" if one.kind is one.POSITIONAL_ONLY else str(one.replace())[:60]
        for name, one in parameters.items()
    ]
    return f"({', '.join(names[: 2 * MAX_NAMES])})"


if __name__ == "__main__":
    main()
