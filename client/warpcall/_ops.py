"""The ops as typed methods. Written by `python -m warpcall_service.generate`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from warpcall._arrays import ArrayT
from warpcall._core import Answer


class Ops(ABC):
    """One method per op, blocking."""

    @abstractmethod
    def call(
        self,
        name: str,
        inputs: Mapping[str, ArrayT | None],
        params: Mapping[str, object] | None = None,
    ) -> Answer[ArrayT]:
        """Run any op and get its outputs by name, with device and timing."""


class AsyncOps(ABC):
    """One method per op, to be awaited."""

    @abstractmethod
    async def call(
        self,
        name: str,
        inputs: Mapping[str, ArrayT | None],
        params: Mapping[str, object] | None = None,
    ) -> Answer[ArrayT]:
        """Run any op and get its outputs by name, with device and timing."""
