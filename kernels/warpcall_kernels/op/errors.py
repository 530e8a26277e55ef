"""The errors that ops raise, always before a kernel is launched.

KernelError
└── InvalidInput   an argument that the op cannot take; also a ValueError
"""

from __future__ import annotations

from collections.abc import Iterable


class KernelError(Exception):
    """Base class of all errors of this package."""


class InvalidInput(KernelError, ValueError):
    """An argument has a name, dtype, shape or value that the op cannot take.

    The message says what is allowed and what came instead, such as
    `b must have shape (3, 2), the transpose of a, got (2, 3)`.

    Args:
        argument: name of the input or parameter that is wrong.
        message: a whole sentence for the caller, without a full stop at its end.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


def brief(value: object) -> str:
    """The repr of a value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def listed(names: Iterable[str]) -> str:
    """Names for a message, separated by commas; "none" if there are none."""
    return ", ".join(names) or "none"
