"""The errors an op raises, all before anything is launched.

KernelError
└── InvalidInput   an argument that the op cannot take; also a ValueError
"""


class KernelError(Exception):
    """Base of every error of this package."""


class InvalidInput(KernelError, ValueError):
    """An argument has a name, dtype, shape or value that the op cannot take.

    The message says what is wrong, what is allowed and what came:
    `b must have shape (3, 2), the transpose of a, got (2, 3)`.

    Args:
        argument: the tensor or parameter at fault.
        message: a full sentence for the caller, without a final stop.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument
