"""Loads uploaded sources in a job's process: implementations to be timed, and a problem."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpcall_kernels import InvalidInput, Op, measuring
from warpcall_kernels.measuring import Implementation
from warpcall_kernels.op.declaration import ParamValue
from warpcall_service.runs.messages import Upload
from warpcall_service.worker import problem_source
from warpcall_service.worker.source_check import described, text

if TYPE_CHECKING:
    from warpcall_service.runs.messages import ProblemSource

Function = Callable[..., Any]


class UploadedCodeEnded(Exception):
    """Uploaded code raised an exception that would have ended the process, such as SystemExit."""


def load(uploads: Sequence[Upload], folder: Path, *, interpreted: bool) -> None:
    """Import uploaded implementations and register them.

    One that cannot be imported is registered, too: it fails in each case with that error.

    Args:
        folder: where their sources are written. Triton reads the source of kernels from files, so
            they must stay until the last case is measured.
        interpreted: whether Triton interprets kernels in this process. The results of sources that
            use Triton are then tagged "interpreted", because their times say nothing about a GPU.
    """
    for number, upload in enumerate(uploads):
        function, error = None, None
        try:
            stem = upload["name"].rpartition("/")[2].partition("@")[0]
            file = folder / str(number) / f"{stem}.py"
            module = _import(upload["source"], file, f"uploaded_{number}")
            function = getattr(module, upload["function"])
        except Exception as raised:  # noqa: BLE001  # uploaded code may raise anything
            error = raised
        except BaseException as raised:  # noqa: BLE001
            error = _as_exception(raised)
        tags = ("interpreted",) if interpreted and "triton" in upload["source"] else ()
        measuring.register(
            Implementation(
                upload["name"], "uploaded", _builder(function, error), (upload["op"],), tags
            )
        )


def load_problem(problem: ProblemSource, folder: Path, *, interpreted: bool) -> Op:
    """Import a problem, and make its op.

    Args:
        folder, interpreted: as in `load`. The tag is on results of the reference.

    Raises:
        InvalidInput: it cannot be used.
    """
    name, source = problem["name"], problem["source"]
    file = folder / "problem" / problem_source.file_name(name)
    try:
        op = problem_source.op_of(_import(source, file, "uploaded_problem"), name, file)
    except BaseException as error:  # noqa: BLE001  # as in `load`
        message = text(f"{name} cannot be used: {described(error, file)}")
        raise InvalidInput("op", message) from None
    reference = _failing_alone(op.reference)
    tags = ("interpreted",) if interpreted and "triton" in source else ()
    return replace(op, function=reference, reference=reference, tags=tags)


def _import(source: str, file: Path, module_name: str) -> ModuleType:
    file.parent.mkdir()
    file.write_bytes(source.encode())
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _builder(
    function: Function | None, error: Exception | None
) -> Callable[[Op, Mapping[str, ParamValue]], Function]:
    traceback = None if error is None else error.__traceback__

    def build(op: Op, params: Mapping[str, ParamValue]) -> Function:
        if error is not None:
            raise error.with_traceback(traceback)
        assert function is not None
        return functools.partial(_failing_alone(function), **params)

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
