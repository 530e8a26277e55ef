"""The context in which implementations run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from warpcall_kernels.op.errors import InvalidInput


class Outside(BaseException):
    """An exception of the caller's callback, which is not a failure of an implementation."""


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Let exceptions of a callback pass through `failing`, which records those of implementations."""
    try:
        yield
    except Exception as error:
        raise Outside from error


@contextlib.contextmanager
def not_outside() -> Iterator[None]:
    """Raise the original exception of the caller's callback."""
    try:
        yield
    except Outside as error:
        raise error.__cause__ or error from None


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
