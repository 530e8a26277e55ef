"""What a process imports that makes cases of ops."""

from __future__ import annotations


def import_for_cases() -> None:
    """Import torch, Triton and the library with its ops, which takes 1.5 s of CPU time or more.

    What torch imports when it computes on the device "meta" for the first time is not imported. It
    takes as much again, and only problems need it.
    """
    import torch  # noqa: F401
    import triton  # noqa: F401

    from warpcall_kernels import measuring, ops  # noqa: F401

    ops()
