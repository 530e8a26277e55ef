"""Loads uploaded implementations in a job's process, and registers them to be timed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpcall_kernels import Op, measuring
from warpcall_kernels.measuring import Implementation
from warpcall_kernels.op.declaration import ParamValue
from warpcall_service.runs.messages import Upload

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
            function = _import(upload, folder / str(number), f"uploaded_{number}")
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


def _import(upload: Upload, folder: Path, module_name: str) -> Function:
    folder.mkdir()
    stem = upload["name"].rpartition("/")[2].partition("@")[0]
    file = folder / f"{stem}.py"
    file.write_bytes(upload["source"].encode())
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Function = getattr(module, upload["function"])
    return function


def _builder(
    function: Function | None, error: Exception | None
) -> Callable[[Op, Mapping[str, ParamValue]], Function]:
    traceback = None if error is None else error.__traceback__

    def build(op: Op, params: Mapping[str, ParamValue]) -> Function:
        if error is not None:
            raise error.with_traceback(traceback)
        assert function is not None

        def compute(**inputs: Any) -> Any:
            try:
                return function(**inputs, **params)
            except Exception:
                raise
            except BaseException as raised:
                raise _as_exception(raised) from raised

        return compute

    return build


def _as_exception(raised: BaseException) -> UploadedCodeEnded:
    """An exception with the same traceback that fails one implementation instead of the job."""
    error = UploadedCodeEnded(f"it raised {type(raised).__name__}: {raised}")
    return error.with_traceback(raised.__traceback__)
