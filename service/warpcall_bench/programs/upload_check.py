"""Checks an uploaded source: python -m warpcall_bench.programs.upload_check, in the sandbox.

It compiles and imports the source, and checks that the function takes the inputs and parameters of
its op by name. It calls nothing and has no GPU.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from warpcall_bench.programs import source_check
from warpcall_bench.programs.source_check import Answers, Refused
from warpcall_bench.runs.messages import CheckRequest
from warpcall_service.processes.imports import quick_imports

MAX_NAMES = 12  # functions that an error lists
SLOW_PACKAGES = ("torch", "triton")  # importing them takes seconds


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check)


def _check(request: CheckRequest, folder: Path, answers: Answers) -> dict[str, str]:
    """Check a source, and answer with the first line of the function's docstring."""
    file = folder / f"{request['function']}.py"
    source_check.write_source(request["source"], file)
    with quick_imports():
        for package in SLOW_PACKAGES:
            if package in request["source"]:
                importlib.import_module(package)  # now, so that its time does not count
    with source_check.limited(request["limit_s"], file, answers, "the import"):
        module = source_check.import_source(file)
        function = function_of(module, request["function"])
        _check_signature(function, request, file)
        doc = inspect.getdoc(function) or ""
    return {"doc": source_check.text(doc.strip().partition("\n")[0])}


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


def _check_signature(function: Any, request: CheckRequest, file: Path) -> None:
    """Raise Refused unless the function takes required inputs and all parameters by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as of a function in C, which has none
        return
    needed = [*request["inputs"], *request["params"]]
    try:
        signature.bind(**dict.fromkeys(needed))
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        ours = code is not None and code.co_filename == str(file)
        where = f"line {code.co_firstlineno}: " if ours and code is not None else ""
        optional = request["optional_inputs"]
        more = f", and may take {', '.join(optional)}" if optional else ""
        raise Refused(
            f"{where}{request['function']} must take the inputs and parameters of "
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
