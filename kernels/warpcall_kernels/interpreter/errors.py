"""What an uploaded kernel raises if only a GPU can run it."""

from __future__ import annotations

import re
import traceback

import torch

# What launchers and torch write when they look for a GPU, as in `assert x.is_cuda`.
OF_GPUS = re.compile(r"\b(?:cuda|gpus?|is_cuda|nvidia|accelerator)\b", re.IGNORECASE)


class CannotInterpret(NotImplementedError):
    """A kernel or its launcher uses something that runs on a GPU only, such as inline assembly.

    It says nothing about the kernel's results: they were not checked.
    """


def needs_gpu(error: BaseException) -> bool:
    """Whether an error says only that this process has no GPU; False if it has one.

    It is True for CannotInterpret, for torch's errors about a missing GPU, and for an error whose
    message or whose line of code is about GPUs, such as `assert x.is_cuda`. A kernel's own exception
    may be the cause of the error.
    """
    if isinstance(error, CannotInterpret):
        return True
    if torch.cuda.is_available():
        return False
    if OF_GPUS.search(_text(error)):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and frames and OF_GPUS.search(frames[-1].line or ""):
        return True
    return error.__cause__ is not None and needs_gpu(error.__cause__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # the class of others may do anything
        return ""
