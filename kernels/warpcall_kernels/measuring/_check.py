"""Checks the results of an implementation. One with wrong results is not timed.

Inputs come from random seeds and are drawn twice into the same memory, so that an implementation
can neither know nor remember a result. The result is compared with the reference in higher
precision on the same device. It must not be left from an earlier call, and the call must not change
its inputs or the memory on both sides of them.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from warpcall_kernels.measuring._implementations import outputs_of
from warpcall_kernels.measuring._memory import Guarded, guarded, poison
from warpcall_kernels.measuring._spec import JobCase
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.compare import Comparison, widened
from warpcall_kernels.op.declaration import Meta, dtype_name

DRAWS = 2

Function = Callable[..., object]


class Wrong(Exception):
    """A result is not the one that the op defines."""


class Checker:
    """Checks implementations of one case with several draws of its inputs."""

    def __init__(self, case: JobCase, device: torch.device) -> None:
        self._case = case
        self._device = device
        self._inputs: dict[str, Guarded] = {}

    def draws(self) -> Iterator[Callable[[Function], int | None]]:
        """For each draw, a function that checks an implementation.

        It raises Wrong, or returns the peak of device memory of the call in bytes.
        """
        for _ in range(DRAWS):
            seed = secrets.randbits(48)
            drawn = draw(self._case.inputs, seed, self._device)
            wanted = self._wanted(drawn)
            comparison = Comparison(self._case.op, drawn, self._case.params)
            yield functools.partial(self._check, seed, drawn, wanted, comparison)
            del drawn, wanted, comparison

    def _check(
        self,
        seed: int,
        drawn: dict[str, Tensor],
        wanted: tuple[Tensor, ...],
        comparison: Comparison,
        function: Function,
    ) -> int | None:
        if not self._inputs:
            self._inputs = guarded(drawn)
        for name, t in drawn.items():
            self._inputs[name].fill(t)
        before = {name: g.snapshot() for name, g in self._inputs.items()}
        poison(self._case.outputs.values(), self._device)
        got, peak = self._call(function)
        self._compare(got, wanted, comparison, seed)
        for name, g in self._inputs.items():
            if not g.is_as(before[name]):
                raise Wrong(f"the call wrote to {name}, or next to it")
        return peak

    def _call(self, function: Function) -> tuple[tuple[Tensor, ...], int | None]:
        inputs = {name: g.tensor for name, g in self._inputs.items()}
        if self._device.type != "cuda":
            return outputs_of(function(**inputs)), None
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        got = outputs_of(function(**inputs))
        torch.cuda.synchronize(self._device)
        return got, max(0, torch.cuda.max_memory_allocated(self._device) - before)

    def _wanted(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        op = self._case.op
        wide = inputs if op.tolerance is None else {n: widened(t) for n, t in inputs.items()}
        wanted = tuple(
            t.contiguous() for t in outputs_of(op.reference(**wide, **self._case.params))
        )
        given = [(tuple(t.shape), t.device) for t in wanted]
        declared = [(meta.shape, self._device) for meta in self._case.outputs.values()]
        if given != declared:
            raise ValueError(
                f"the reference must return tensors of shapes and devices {declared}, got {given}"
            )
        return wanted

    def _compare(
        self,
        got: Sequence[Tensor],
        wanted: Sequence[Tensor],
        comparison: Comparison,
        seed: int,
    ) -> None:
        metas = self._case.outputs
        if len(got) != len(metas):
            raise Wrong(f"there must be {len(metas)} outputs, got {len(got)}")
        for (name, meta), ours, theirs in zip(metas.items(), got, wanted, strict=True):
            _compare_one(comparison, name, meta, ours, theirs, self._device, seed)


def draw(inputs: Mapping[str, Sample], seed: int, device: torch.device) -> dict[str, Tensor]:
    """Draw inputs on a device. A seed gives the same values on one kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    return {name: sample.draw(generator, device) for name, sample in inputs.items()}


def _compare_one(
    comparison: Comparison,
    name: str,
    meta: Meta,
    ours: object,
    theirs: Tensor,
    device: torch.device,
    seed: int,
) -> None:
    if not isinstance(ours, Tensor):
        raise Wrong(f"{name} must be a tensor, got {type(ours).__name__}")
    if (tuple(ours.shape), ours.dtype) != (meta.shape, meta.dtype) or ours.device != device:
        raise Wrong(
            f"{name} must be {dtype_name(meta.dtype)} of shape {meta.shape} on {device}, "
            f"got {dtype_name(ours.dtype)} of shape {tuple(ours.shape)} on {ours.device}"
        )
    difference = comparison.difference(name, ours, theirs)
    if difference is not None:
        raise Wrong(f"{difference} (seed {seed})")
