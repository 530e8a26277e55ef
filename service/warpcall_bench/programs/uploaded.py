"""Imports uploaded sources in a process of their own: an implementation, or a problem."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import problem_source
from warpcall_bench.programs.setup_function import setup_of
from warpcall_bench.programs.source_check import described, text
from warpcall_bench.runs import trees
from warpcall_bench.runs.messages import Upload
from warpcall_kernels import InvalidInput, Op, interpreter, measuring
from warpcall_kernels.execution.setup import set_up_at_first_call
from warpcall_kernels.measuring import Implementation, Loaded
from warpcall_kernels.op import launch
from warpcall_kernels.op.declaration import ParamValue

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import ProblemSource
    from warpcall_bench.runs.trees import SourceTree

Function = Callable[..., Any]
MODULE = "uploaded"  # the name of an implementation's module


class UploadedCodeEnded(Exception):
    """Uploaded code raised an exception that would have ended the process, such as SystemExit."""


def mend_interpreter() -> None:
    """Repair Triton's interpreter if this process has it, for the kernels of uploads only."""
    if "TRITON_INTERPRET" in os.environ:
        launch.interpret_only_others()
        interpreter.mend()


def load(upload: Upload, folder: Path) -> Loaded:
    """Import an uploaded implementation; its module then has the name MODULE, too.

    Args:
        folder: where its files are written. Triton reads the source of kernels from files, so it
            must stay until the last case is measured.

    Returns:
        Its function with its setup, or the error for which there is none.
    """
    stem = upload["name"].rpartition("/")[2].partition("@")[0]
    try:
        written = trees.write(upload, folder / "upload", f"{stem}.py")
        if written.root is None:
            module = _import(written.file, MODULE)
        else:
            module = sys.modules[MODULE] = trees.import_tree(written)
        function = getattr(module, upload["function"])
        setup = setup_of(module, function)
    except Exception as raised:  # noqa: BLE001  # uploaded code may raise anything
        return Loaded(error=raised)
    except BaseException as raised:  # noqa: BLE001
        return Loaded(error=_as_exception(raised))
    return Loaded(
        function=_failing_alone(function), setup=None if setup is None else _failing_alone(setup)
    )


def load_problem(problem: ProblemSource, folder: Path) -> Op:
    """Import a problem, and make its op.

    Args:
        folder: as in `load`.

    Raises:
        InvalidInput: it cannot be used.
    """
    name = problem["name"]
    tree: SourceTree = {"source": problem["source"]}
    written = trees.write(tree, folder / "problem", problem_source.file_name(name))
    try:
        op = problem_source.op_of(_import(written.file, "uploaded_problem"), name, written.file)
    except BaseException as error:  # noqa: BLE001  # as in `load`
        message = text(f"{name} cannot be used: {described(error, written)}")
        raise InvalidInput("op", message) from None
    reference = _failing_alone(op.reference)
    return replace(op, function=reference, reference=reference)


def register(uploads: Sequence[Upload], folder: Path) -> None:
    """Import uploaded implementations and register them in this process, for a profile.

    One that cannot be imported is registered, too: it fails in each case with that error.
    """
    for upload in uploads:
        builder = _builder(load(upload, folder))
        measuring.register(Implementation(upload["name"], "uploaded", builder, (upload["op"],)))


def _import(file: Path, module_name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _builder(loaded: Loaded) -> Callable[[Op, Mapping[str, ParamValue]], Function]:
    function, error = loaded.function, loaded.error
    traceback = None if error is None else error.__traceback__

    def build(op: Op, params: Mapping[str, ParamValue]) -> Function:
        if error is not None:
            raise error.with_traceback(traceback)
        assert function is not None
        return set_up_at_first_call(function, loaded.setup, params)

    return build


def _failing_alone(function: Function) -> Function:
    """A function of the user's that raises UploadedCodeEnded instead of ending the process."""

    @functools.wraps(function)
    def compute(**given: Any) -> Any:
        try:
            return function(**given)
        except Exception:
            raise
        except BaseException as raised:
            raise _as_exception(raised) from raised

    return compute


def _as_exception(raised: BaseException) -> UploadedCodeEnded:
    """An exception with the same traceback that fails one implementation instead of the job."""
    error = UploadedCodeEnded(f"it raised {type(raised).__name__}: {raised}")
    return error.with_traceback(raised.__traceback__)
