"""Runs Triton kernels on the CPU as a GPU would: Triton's own interpreter with its faults repaired."""

from __future__ import annotations

from warpcall_kernels.interpreter.errors import CannotInterpret, needs_gpu

__all__ = ["CannotInterpret", "mend", "needs_gpu"]


def mend() -> None:
    """Repair Triton's interpreter in this process; the operation is idempotent.

    Call it after Triton was imported with TRITON_INTERPRET=1, and before the modules with kernels
    are imported. Plain torch code in the process is not affected. A kernel that cannot be
    interpreted raises CannotInterpret.

    Raises:
        RuntimeError: Triton was imported without TRITON_INTERPRET=1.
    """
    from warpcall_kernels.interpreter import patches  # here: others need only the errors

    patches.install()
