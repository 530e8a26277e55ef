"""Makes an op of a problem's module. Errors name the line of its source."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs.source_check import described, import_source, write_source
from warpcall_bench.runs.trees import Written
from warpcall_kernels import InvalidInput, Op, Problem, op_named
from warpcall_kernels.op.sources import unwrapped

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import ProblemSource

VARIABLE = "PROBLEM"
ABOUT_META = re.compile(r"(\b|_)meta(\b|_)|'Meta' backend")  # in messages of torch
WITHOUT_MEMORY = (
    '; shapes and dtypes of outputs are found with tensors on the device "meta", which have no '
    "values: the reference must not depend on values, and must make tensors with device=x.device"
)


def file_name(problem: str) -> str:
    """The name of the file for a problem's source, such as "row_norm.py" for "ann/row-norm"."""
    return problem.rpartition("/")[2].partition("@")[0].replace("-", "_") + ".py"


def requested_op(op: str, problem: ProblemSource | None, folder: Path) -> Op:
    """The op of a request: a shipped one by its name, or that of a problem.

    Args:
        folder: for the source of the problem.

    Raises:
        Refused: the problem cannot be imported.
        InvalidInput: there is no such op, or as `op_of`.
    """
    if problem is None:
        return op_named(op)
    name = problem["name"]
    written = write_source({"source": problem["source"]}, folder / "problem", file_name(name))
    return op_of(import_source(written), name, written.file)


def op_of(module: ModuleType, name: str, file: Path) -> Op:
    """The op of the problem that a module declares.

    Args:
        module: an imported source.
        name: the name of the problem, such as "ann/row-norm".
        file: the file of the module.

    Raises:
        InvalidInput: the module declares none, or its functions raise or return what cannot be
            used. `infer`, `derive` and `bytes_moved` of the op raise the same.
    """
    problem = vars(module).get(VARIABLE)
    if not isinstance(problem, Problem):
        found = "has none" if problem is None else f"it is of type {type(problem).__name__}"
        raise InvalidInput(
            VARIABLE,
            f"a problem is declared as {VARIABLE} = Problem(...), of warpcall_kernels; the source "
            f"{found}",
        )
    with _explained(VARIABLE, problem, file):
        op = problem.op(name)
    return replace(
        op,
        infer=_explaining("reference", op.infer, problem, file),
        derive=_explaining("inputs", op.derive, problem, file),
        bytes_moved=_explaining("bytes_moved", op.bytes_moved, problem, file),
    )


def _explaining(argument: str, function: Any, problem: Problem, file: Path) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        with _explained(argument, problem, file):
            return function(*args, **given)

    return call


@contextlib.contextmanager
def _explained(argument: str, problem: Problem, file: Path) -> Iterator[None]:
    """Raise InvalidInput for whatever the author's code raises, with the line."""
    try:
        yield
    except BaseException as error:  # the author's code may raise anything
        message = described(error, Written(file))
        if not message.startswith("line "):  # a check of what a function returned
            argument = error.argument if isinstance(error, InvalidInput) else argument
            message = f"{_first_line(argument, problem, file)}{message}"
        elif ABOUT_META.search(message):
            message += WITHOUT_MEMORY
        raise InvalidInput(argument, message) from error


def _first_line(argument: str, problem: Problem, file: Path) -> str:
    """Where the function begins that an argument of `Problem` is, if that is known."""
    function = getattr(problem, argument.partition(".")[0], None)
    code = getattr(unwrapped(function), "__code__", None) if callable(function) else None
    ours = code is not None and code.co_filename == str(file)
    return f"line {code.co_firstlineno}: " if ours and code is not None else ""
