"""The errors that ops raise, always before a kernel is launched.

KernelError
└── InvalidInput   an argument that the op cannot take; also a ValueError
"""


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
