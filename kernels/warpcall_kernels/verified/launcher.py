"""Carries out launch plans on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.plan import Plan


class PlannedFunction:
    """The function of one case that a plan describes.

    Args:
        outputs: shapes and dtypes of its outputs.
    """

    def __init__(self, plan: Plan, outputs: Mapping[str, Meta]) -> None:
        self._plan = plan
        self._outputs = outputs

    def __call__(self, **inputs: Tensor) -> Any:
        raise NotImplementedError

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """A context in which calls check what lies around their buffers."""
        yield

    def choose(self, inputs: Mapping[str, Tensor]) -> None:
        """Find the fastest choice of each step, with some inputs."""
