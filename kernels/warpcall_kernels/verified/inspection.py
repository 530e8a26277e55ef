"""Inspects compiled kernels: refuses what could keep state between launches or reach the host."""

from __future__ import annotations

from warpcall_kernels.verified.plan import Plan


class Refused(Exception):
    """A compiled kernel has what a verified kernel may not have. The text names it."""


def inspect(plan: Plan) -> None:
    """Check the kernels of a plan.

    Raises:
        Refused: one of them may not run as a verified kernel.
    """
    raise NotImplementedError
