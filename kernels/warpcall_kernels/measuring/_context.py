"""Where and how implementations run, and what their exceptions mean."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from warpcall_kernels.measuring._result import Status
from warpcall_kernels.op.errors import InvalidInput


def class_of(error: Exception) -> Status:
    """What kind of failure an exception is."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if any(k.startswith(("torch._dynamo", "torch._inductor", "triton.")) for k in kinds):
        return "compile_error"
    text = str(error)
    # Want of memory is told in many ways, by the driver as an error of its own, and does not stick.
    short = any(words in text for words in ("out of memory", "allocate memory"))
    if short or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "oom"
    if any(words in text for words in ("CUDA error", "Triton Error [CUDA]")):
        return "cuda_error"
    return "cuda_error" if any(k.endswith("AcceleratorError") for k in kinds) else "wrong_result"


class _Outside(BaseException):
    """What a callback of the caller raised: the fault of no implementation."""


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Let what a callback raises pass all that notes the failures of implementations."""
    try:
        yield
    except Exception as error:
        raise _Outside from error


@contextlib.contextmanager
def not_outside() -> Iterator[None]:
    """Give the caller what his callback raised."""
    try:
        yield
    except _Outside as error:
        raise error.__cause__ or error from None


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


def parse_device(device: torch.device | str) -> torch.device:
    """The device of a name, with its number; raises InvalidInput."""
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
    """fp32 means fp32: by default cuDNN convolves it with 10 bits of mantissa, another result."""
    before = torch.backends.cudnn.allow_tf32
    _set_tf32(False)
    try:
        yield
    finally:
        _set_tf32(before)


def _set_tf32(allowed: bool) -> None:
    with warnings.catch_warnings(action="ignore"):  # some versions of torch have two ways to say so
        torch.backends.cudnn.allow_tf32 = allowed
