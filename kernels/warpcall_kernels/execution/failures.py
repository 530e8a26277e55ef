"""What a result says of an exception: its status, its message, its traceback."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Literal

import torch

Status = Literal[
    "ok",
    "error",
    "wrong_result",
    "compile_error",
    "oom",
    "cuda_error",
    "invalid",
    "timeout",
    "crashed",
    "unchecked",
]

MAX_ERROR_CHARS = 500
MAX_TRACEBACK_BYTES = 4096
HEAD_BYTES = 1536  # of a traceback that is too long: the rest that is kept is its end
CUT = "\n... (shortened)\n"
# Code between a job and an implementation. A traceback begins after the frames of these packages.
CALLERS = (
    "warpcall_kernels.execution",
    "warpcall_kernels.measuring",
    "warpcall_kernels.verified",
    "warpcall_bench",
    "warpcall_service",
    "importlib",
)


def class_of(error: BaseException) -> Status:
    """The status that an exception means."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if "triton.runtime.errors.InterpreterError" in kinds:  # the kernel's own exception is its cause
        return "error" if error.__cause__ is None else class_of(error.__cause__)
    if any(k.startswith(("torch._dynamo", "torch._inductor", "triton.")) for k in kinds):
        return "compile_error"
    if "warpcall_kernels.interpreter.errors.CannotInterpret" in kinds:
        return "unchecked"
    text = _message(error)
    # Lack of memory has several messages. The driver reports it as a CUDA error that can be
    # cleared.
    no_memory = any(words in text for words in ("out of memory", "allocate memory"))
    if no_memory or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "oom"
    if any(words in text for words in ("CUDA error", "Triton Error [CUDA]")):
        return "cuda_error"
    return "cuda_error" if any(k.endswith("AcceleratorError") for k in kinds) else "error"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, with its type."""
    lines = _message(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}"[:MAX_ERROR_CHARS])


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, from the implementation's own code on.

    Files have no folders beyond the one from which Python imported them. A text of more than 4 KB
    keeps its begin and its end.
    """
    shown = traceback.TracebackException.from_exception(error, compact=True)
    _shorten(shown, seen=set())
    text = printable("".join(shown.format()).expandtabs(4)).strip()
    data = text.encode()
    if len(data) <= MAX_TRACEBACK_BYTES:
        return text
    end = data[len(data) - (MAX_TRACEBACK_BYTES - HEAD_BYTES - len(CUT)) :]
    return data[:HEAD_BYTES].decode(errors="ignore") + CUT + end.decode(errors="ignore")


def _shorten(shown: traceback.TracebackException, seen: set[int]) -> None:
    """Drop the frames of callers, and folders of files, here and in the causes of an exception."""
    if id(shown) in seen:
        return
    seen.add(id(shown))
    callers = [str(Path(f).parent) for name in CALLERS if (f := _file_of(name))]
    frames = shown.stack
    own = 0
    while own < len(frames) and frames[own].filename.startswith(("<frozen importlib", *callers)):
        own += 1
    del frames[:own]
    for frame in frames:
        frame.filename = _without_folder(frame.filename)
    if isinstance(getattr(shown, "filename", None), str):  # of a SyntaxError
        shown.filename = _without_folder(shown.filename)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _shorten(other, seen)


def _file_of(module: str) -> str | None:
    found = sys.modules.get(module)
    return None if found is None else found.__file__


def _without_folder(file: str) -> str:
    """The path of a file in the folder from which Python imports it, or else its name."""
    roots = {*map(str, map(Path, sys.path)), *sysconfig.get_paths().values()}
    parts = [file[len(root) + 1 :] for root in roots if file.startswith(f"{root}/")]
    return min(parts, key=len, default=file.rpartition("/")[2])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # the class of others may do anything
        return ""


def printable(text: str) -> str:
    """A text that can be stored and shown: without control characters and lone surrogates."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
