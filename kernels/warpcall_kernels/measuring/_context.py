"""The context in which implementations run, and the meaning of their exceptions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from warpcall_kernels.measuring._result import Status
from warpcall_kernels.op.errors import InvalidInput


def class_of(error: Exception) -> Status:
    """The status that an exception means."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if any(k.startswith(("torch._dynamo", "torch._inductor", "triton.")) for k in kinds):
        return "compile_error"
    text = str(error)
    # Lack of memory has several messages. The driver reports it as a CUDA error that can be
    # cleared.
    no_memory = any(words in text for words in ("out of memory", "allocate memory"))
    if no_memory or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "oom"
    if any(words in text for words in ("CUDA error", "Triton Error [CUDA]")):
        return "cuda_error"
    return "cuda_error" if any(k.endswith("AcceleratorError") for k in kinds) else "error"


class _Outside(BaseException):
    """An exception of the caller's callback, which is not a failure of an implementation."""


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Let exceptions of a callback pass through `failing`, which records those of implementations."""
    try:
        yield
    except Exception as error:
        raise _Outside from error


@contextlib.contextmanager
def not_outside() -> Iterator[None]:
    """Raise the original exception of the caller's callback."""
    try:
        yield
    except _Outside as error:
        raise error.__cause__ or error from None


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


def parse_device(device: torch.device | str) -> torch.device:
    """The device of a name, with its index. Raises InvalidInput for others."""
    try:
        found = torch.device(device)
    except RuntimeError:
        found = torch.device("meta")
    if found.type == "cuda" and torch.cuda.is_available():
        index = torch.cuda.current_device() if found.index is None else found.index
        if index < torch.cuda.device_count():
            return torch.device("cuda", index)
    elif found.type == "cpu":
        return found
    raise InvalidInput("device", f"device must be cpu, or cuda where there is one, got {device}")


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[torch.device]:
    """Make a GPU the current one."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield device


@contextlib.contextmanager
def same_arithmetic() -> Iterator[None]:
    """Disable TF32 in cuDNN, which otherwise convolves fp32 with 10 bits of mantissa."""
    before = torch.backends.cudnn.allow_tf32
    _set_tf32(False)
    try:
        yield
    finally:
        _set_tf32(before)


def _set_tf32(allowed: bool) -> None:
    with warnings.catch_warnings(
        action="ignore"
    ):  # some versions of torch warn about one of two settings
        torch.backends.cudnn.allow_tf32 = allowed
