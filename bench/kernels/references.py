"""The references that torch.compile compiles, which a benchmark times beside our kernels.

A process compiles each either when it measures the case, for a limited time, or ahead, together
with other processes. Those disturb each other's times. So nothing is chosen ahead between several
configurations of a kernel: torch.compile chooses at the first call after that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from unittest import mock

import torch

from warpcall_kernels import Op, measuring
from warpcall_kernels.execution.check import draw
from warpcall_kernels.execution.implementations import find
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.errors import InvalidInput

COMPILED = "torch.compile"  # the implementation that compiles at its first call
KEPT = "torch.compile ahead"  # the implementation that was compiled before
MOST_COMPILED = 10_000  # cases of an op that one process may compile; torch allows 8

Function = Callable[..., Any]


class References(Protocol):
    """Says which reference is timed beside our kernels."""

    def implementation(self, op: Op, case: Case) -> str | None:
        """The name of the implementation to measure, or None to leave it out."""

    def add(self, op: Op, seconds: float) -> None:
        """Add the time that torch.compile took for a case of this op."""


class Budgeted:
    """References that are compiled when they are measured, while their time lasts.

    Args:
        seconds: for each op. It may also take what earlier ops left.
    """

    def __init__(self, seconds: float) -> None:
        self._each = seconds
        self._spent: dict[str, float] = {}  # by op

    def implementation(self, op: Op, case: Case) -> str | None:
        """The implementation, if time is left for this op."""
        saved = sum(self._each - spent for name, spent in self._spent.items() if name != op.name)
        spent = self._spent.get(op.name, 0.0)
        return COMPILED if spent <= self._each + max(0.0, saved) else None

    def add(self, op: Op, seconds: float) -> None:
        """Add the time that torch.compile took for a case of this op."""
        self._spent[op.name] = self._spent.get(op.name, 0.0) + seconds


class Kept:
    """References that this process compiles and keeps.

    Args:
        device: whose tensors they are compiled for.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._functions: dict[tuple[str, str], Function] = {}
        _register()

    def compile(self, op: Op, case: Case) -> None:
        """Compile the reference of a case, and call it. Raises what torch.compile raises."""
        # The limits are of this process. Beyond them torch would call the reference uncompiled.
        torch._dynamo.config.recompile_limit = MOST_COMPILED
        torch._dynamo.config.accumulated_recompile_limit = MOST_COMPILED
        params = op.check_params(case.params)
        function: Function = torch.compile(find(op, "torch").build(op, params), dynamic=False)
        with torch.no_grad(), measuring.same_arithmetic():
            function(**draw(case.inputs, case.seed, torch.device(self._device)))
        self._functions[op.name, case.name] = function

    def implementation(self, op: Op, case: Case) -> str | None:
        """The reference of this case, which is compiled now if it was not; None if it cannot be."""
        if (op.name, case.name) not in self._functions:
            try:
                self.compile(op, case)
            except Exception:  # noqa: BLE001  # torch.compile may raise anything
                return None
        _measured["function"] = self._functions[op.name, case.name]
        return KEPT

    def add(self, op: Op, seconds: float) -> None:
        """Nothing limits the time of these."""


_measured: dict[str, Function] = {}  # of the case that is measured, because `build` gets no case


def _build(op: Op, params: Mapping[str, Any]) -> Function:
    return _measured["function"]


def _register() -> None:
    with contextlib.suppress(InvalidInput):  # it is registered already
        doc = "a reference that was compiled ahead"
        measuring.register(measuring.Implementation(KEPT, doc, _build))


@contextlib.contextmanager
def undecided() -> Iterator[None]:
    """A context in which torch.compile chooses no configuration of a kernel: it takes the first.

    After the context each kernel has all of its configurations again, and chooses at its next call.
    """
    # The import takes seconds, and only torch.compile needs it.
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    taken: list[tuple[Any, list[Any]]] = []

    def take_first(kernel: Any, *_: Any, **__: Any) -> None:
        taken.append((kernel, kernel.launchers))
        kernel.launchers = kernel.launchers[:1]

    try:
        with mock.patch.object(CachingAutotuner, "autotune_to_one_config", take_first):
            yield
    finally:
        for kernel, launchers in taken:
            kernel.launchers = launchers
            if hasattr(kernel, "_cached_launcher"):  # torch 2.13 has it, 2.11 has not
                kernel._cached_launcher = None
